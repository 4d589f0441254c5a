// Drives ioredis through the proxy: node ioredis.mjs HOST:PORT
// Everything but the address is the library's default; it speaks RESP2.

import assert from "node:assert/strict";
import Redis from "ioredis";

const [host, port] = process.argv[2].split(":");
const redis = new Redis(Number(port), host);
redis.on("error", (error) => { throw error; });

// strings
assert.equal(await redis.set("io:s", "v"), "OK");
assert.equal(await redis.get("io:s"), "v");
assert.equal(await redis.get("io:none"), null);
assert.equal(await redis.mset({ "io:a": 1, "io:b": 2, "io:c": 3 }), "OK");
assert.deepEqual(await redis.mget("io:a", "io:none", "io:c"), ["1", null, "3"]);
assert.equal(await redis.del("io:a", "io:b", "io:c"), 3);
const binary = Buffer.from(Array.from({ length: 256_000 }, (_, i) => i & 255));
await redis.set("io:binary", binary);
assert.deepEqual(await redis.getBuffer("io:binary"), binary);

// hashes, in CoSky's form: read from the near-cache
for (let version = 0; version < 3; version++) {
  await redis.hset("io-{h}:cfg:c", { data: "d", version });
  assert.deepEqual(await redis.hgetall("io-{h}:cfg:c"), { data: "d", version: String(version) });
  assert.deepEqual(await redis.hgetall("io-{h}:cfg:c"), { data: "d", version: String(version) });
}
await assert.rejects(redis.lpush("io-{h}:cfg:c", "x"), /^ReplyError: WRONGTYPE/);

// pipeline, and commands that the library sends without waiting
const pipeline = redis.pipeline();
for (let i = 0; i < 1000; i++) pipeline.set(`io:p${i}`, i).get(`io:p${i}`);
assert.deepEqual((await pipeline.exec()).filter((_, i) => i % 2), Array.from({ length: 1000 }, (_, i) => [null, String(i)]));
assert.deepEqual(await Promise.all(Array.from({ length: 1000 }, (_, i) => redis.get(`io:p${i}`))), Array.from({ length: 1000 }, (_, i) => String(i)));

// transactions
assert.deepEqual(await redis.multi().set("{io}a", 1).incr("{io}a").get("{io}a").exec(), [[null, "OK"], [null, 2], [null, "2"]]);
await redis.watch("{io}a");
const other = redis.duplicate();
await other.set("{io}a", 9);
assert.equal(await redis.multi().incr("{io}a").exec(), null);

// pub/sub
const messages = [];
const sub = redis.duplicate();
const both = new Promise((resolve) => {
  const note = (...message) => { if (messages.push(message) === 2) resolve(); };
  sub.on("message", note);
  sub.on("pmessage", note);
});
assert.equal(await sub.subscribe("io:channel"), 1);
assert.equal(await sub.psubscribe("io:p*"), 2);
await redis.publish("io:channel", "one");
await redis.publish("io:pattern", "two");
await both;
assert.deepEqual(messages, [["io:channel", "one"], ["io:p*", "io:pattern", "two"]]);
assert.equal(await sub.unsubscribe("io:channel"), 1);
assert.equal(await sub.punsubscribe("io:p*"), 0);
assert.equal(await sub.get("io:s"), "v");

// scripts: EVALSHA, then EVAL
redis.defineCommand("add", { numberOfKeys: 1, lua: "return redis.call('INCRBY', KEYS[1], ARGV[1])" });
assert.equal(await redis.add("io:script", 2), 2);
assert.equal(await redis.add("io:script", 3), 5);

// blocking
const job = other.blpop("io:queue", 20);
await redis.lpush("io:queue", "job");
assert.deepEqual(await job, ["io:queue", "job"]);

await Promise.all([redis, other, sub].map((client) => client.quit()));
console.log("all passed");
