"""Drives redis-py through proxies: python3 redis_py.py NAME=single|cluster@HOST:PORT[,HOST:PORT]...

Prints one line per target, protocol and feature that works; what does not is printed
with its error, whose stack goes to standard error. Everything but address and protocol is the library's default.
"""

import sys
import threading
import traceback

import redis
from redis.cluster import ClusterNode, RedisCluster


class Run:
    """One client on one target, with keys that nobody else uses."""

    def __init__(self, name, kind, addresses, protocol):
        self.p = f"py:{name}:{protocol}:"
        self.tag = "{" + self.p + "}"
        self.kind = kind
        hosts = [(host, int(port)) for host, _, port in (a.rpartition(":") for a in addresses.split(","))]
        if kind == "cluster":
            self.open = lambda: RedisCluster(startup_nodes=[ClusterNode(*h) for h in hosts], protocol=protocol)
        else:
            self.open = lambda: redis.Redis(*hosts[0], protocol=protocol)
        self.r = self.open()

    def strings(self):
        r, p = self.r, self.p
        assert r.set(p + "s", "v") is True
        assert r.get(p + "s") == b"v"
        assert r.get(p + "none") is None
        # A cluster client itself refuses keys of several slots.
        many = self.tag if self.kind == "cluster" else p
        assert r.mset({f"{many}m{i}": i for i in range(20)}) is True
        assert r.mget([f"{many}m{i}" for i in range(20)]) == [str(i).encode() for i in range(20)]
        assert r.delete(*[f"{many}m{i}" for i in range(20)]) == 20
        assert r.set(p + "binary", bytes(range(256)) * 1000) is True
        assert r.get(p + "binary") == bytes(range(256)) * 1000
        assert r.incr(p + "n") == 1
        assert r.expire(p + "n", 100) is True
        assert 0 < r.ttl(p + "n") <= 100

    def hashes(self):
        r, key = self.r, self.tag + ":cfg:c"  # CoSky's form: read from the near-cache
        for version in range(3):
            r.hset(key, mapping={"data": "d", "version": version})
            for _ in range(3):
                assert r.hgetall(key) == {b"data": b"d", b"version": str(version).encode()}
        assert r.hincrby(key, "version", 5) == 7
        assert r.hgetall(key)[b"version"] == b"7"
        assert r.zadd(self.p + "z", {"a": 1.5, "b": -2.25e10}) == 2
        assert r.zscore(self.p + "z", "b") == -2.25e10  # a type of its own in RESP3
        try:
            r.lpush(key, "x")
            raise AssertionError("LPUSH on a hash worked")
        except redis.ResponseError as e:
            assert "WRONGTYPE" in str(e), e

    def pipeline(self):
        p = self.r.pipeline(transaction=False)
        for i in range(1000):
            p.set(f"{self.p}p{i}", i)
        for i in range(1000):
            p.get(f"{self.p}p{i}")
        replies = p.execute()
        assert replies[:1000] == [True] * 1000
        assert replies[1000:] == [str(i).encode() for i in range(1000)]

    def transaction(self):
        p = self.r.pipeline(transaction=True)
        p.set(self.tag + "a", 1)
        p.incr(self.tag + "a")
        p.get(self.tag + "a")
        ok, *rest = p.execute()
        assert ok in (True, b"OK") and rest == [2, b"2"]  # the cluster client leaves OK as it is

    def watch(self):
        key = self.tag + "w"
        self.r.set(key, 1)
        with self.r.pipeline(transaction=True) as p:
            p.watch(key)
            assert p.get(key) == b"1"
            self.r.set(key, 9)  # on another connection
            p.multi()
            p.incr(key)
            try:
                p.execute()
                raise AssertionError("EXEC did not see the change")
            except redis.WatchError:
                pass

        def increment(p):
            p.multi()
            p.incr(key)

        assert self.r.transaction(increment, key) == [10]

    def blocking(self):
        other = threading.Thread(target=lambda: self.open().lpush(self.p + "queue", "job"))
        other.start()
        assert list(self.r.blpop(self.p + "queue", timeout=4)) == [(self.p + "queue").encode(), b"job"]
        other.join()

    def pubsub(self):
        channel, pattern = self.p + "channel", self.p + "p*"
        sub = self.r.pubsub()

        def receive():
            message = sub.get_message(timeout=20)
            assert message is not None, "no message"
            return tuple(message[k] for k in ("type", "pattern", "channel", "data"))

        sub.subscribe(channel)
        assert receive() == ("subscribe", None, channel.encode(), 1)
        sub.psubscribe(pattern)
        assert receive() == ("psubscribe", None, pattern.encode(), 2)
        self.r.publish(channel, "one")
        assert receive() == ("message", None, channel.encode(), b"one")
        self.r.publish(self.p + "pattern", "two")
        assert receive() == ("pmessage", pattern.encode(), (self.p + "pattern").encode(), b"two")
        sub.unsubscribe(channel)
        assert receive() == ("unsubscribe", None, channel.encode(), 1)
        sub.close()

    def scripts(self):
        add = self.r.register_script("return redis.call('INCRBY', KEYS[1], ARGV[1])")
        assert [add(keys=[self.p + "script"], args=[i]) for i in (1, 2, 3)] == [1, 3, 6]

    def scan(self):
        members = {f"m{i}".encode() for i in range(1000)}
        self.r.sadd(self.p + "set", *members)
        assert set(self.r.sscan_iter(self.p + "set", count=100)) == members
        keys = {f"{self.p}scan:{i}".encode() for i in range(100)}
        for key in keys:
            self.r.set(key, "")
        assert set(self.r.scan_iter(match=self.p + "scan:*", count=100)) == keys


FEATURES = ("strings", "hashes", "pipeline", "transaction", "watch", "blocking", "pubsub", "scripts", "scan")


def main():
    for target in sys.argv[1:]:
        name, _, where = target.partition("=")
        kind, _, addresses = where.partition("@")
        for protocol in (2, 3):
            try:
                run = Run(name, kind, addresses, protocol)
            except Exception as e:
                print(f"{name} RESP{protocol} connect: {e!r}")
                continue
            for feature in FEATURES:
                line = f"{name} RESP{protocol} {feature}"
                try:
                    getattr(run, feature)()
                    print(line, flush=True)
                except Exception as e:
                    print(f"{line}: {e!r}", flush=True)
                    traceback.print_exc()


main()
