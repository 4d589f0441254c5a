"""Drives redis-py through the proxy: python3 client.py HOST:PORT

Everything but the address is the library's default. Fails with a traceback.
"""

import sys
import threading

import redis


def strings(r):
    assert r.set("py:s", "v") is True
    assert r.get("py:s") == b"v"
    assert r.get("py:none") is None
    assert r.mset({f"py:m{i}": i for i in range(20)}) is True
    assert r.mget([f"py:m{i}" for i in range(20)]) == [str(i).encode() for i in range(20)]
    assert r.delete(*[f"py:m{i}" for i in range(20)]) == 20
    assert r.set("py:binary", bytes(range(256)) * 1000) is True
    assert r.get("py:binary") == bytes(range(256)) * 1000
    assert r.incr("py:n") == 1
    assert r.expire("py:n", 100) is True
    assert 0 < r.ttl("py:n") <= 100


def hashes(r):
    key = "py-{h}:cfg:c"  # CoSky's form: read from the near-cache
    for version in range(3):
        r.hset(key, mapping={"data": "d", "version": version})
        for _ in range(3):
            assert r.hgetall(key) == {b"data": b"d", b"version": str(version).encode()}
    assert r.hincrby(key, "version", 5) == 7
    assert r.hgetall(key)[b"version"] == b"7"
    try:
        r.lpush(key, "x")
        raise AssertionError("LPUSH on a hash worked")
    except redis.ResponseError as e:
        assert str(e).startswith("WRONGTYPE"), e


def pipeline(r):
    p = r.pipeline(transaction=False)
    for i in range(1000):
        p.set(f"py:p{i}", i)
    for i in range(1000):
        p.get(f"py:p{i}")
    replies = p.execute()
    assert replies[:1000] == [True] * 1000
    assert replies[1000:] == [str(i).encode() for i in range(1000)]


def transaction(r):
    p = r.pipeline()
    p.set("{py}a", 1).incr("{py}a").get("{py}a")
    assert p.execute() == [True, 2, b"2"]

    with r.pipeline() as p:  # optimistic locking
        p.watch("{py}a")
        assert p.get("{py}a") == b"2"
        r.set("{py}a", 9)
        p.multi()
        p.incr("{py}a")
        try:
            p.execute()
            raise AssertionError("EXEC did not see the change")
        except redis.WatchError:
            pass

    def increment(p):
        p.multi()
        p.incr("{py}a")

    assert r.transaction(increment, "{py}a") == [10]


def pub_sub(r):
    sub = r.pubsub()
    sub.subscribe("py:channel")
    sub.psubscribe("py:p*")
    kinds = [next(sub.listen())["type"] for _ in range(2)]
    assert kinds == ["subscribe", "psubscribe"], kinds
    # What PUBLISH returns is not looked at: a cluster counts the receivers of one node.
    r.publish("py:channel", "one")
    assert next(sub.listen())["data"] == b"one"
    r.publish("py:pattern", "two")
    message = next(sub.listen())
    assert (message["type"], message["channel"], message["data"]) == ("pmessage", b"py:pattern", b"two"), message
    sub.close()


def script(r):
    add = r.register_script("return redis.call('INCRBY', KEYS[1], ARGV[1])")
    assert [add(keys=["py:script"], args=[i]) for i in (1, 2, 3)] == [1, 3, 6]


def blocking(r):
    other = threading.Thread(target=lambda: r.lpush("py:queue", "job"))
    other.start()
    assert r.blpop("py:queue", timeout=20) == (b"py:queue", b"job")
    other.join()


def main():
    host, port = sys.argv[1].rsplit(":", 1)
    r = redis.Redis(host=host, port=int(port))
    assert r.ping() is True
    for step in (strings, hashes, pipeline, transaction, pub_sub, script, blocking):
        step(r)
    print("all passed")


main()
