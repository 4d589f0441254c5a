// Drives node-redis through the proxy: node node-redis.mjs HOST:PORT [2|3]
// Everything but the address and the protocol is the library's default.

import assert from "node:assert/strict";
import { createClient, defineScript, RESP_TYPES, WatchError } from "redis";

const [address, protocol = "2"] = process.argv.slice(2);
const add = defineScript({
  NUMBER_OF_KEYS: 1,
  SCRIPT: "return redis.call('INCRBY', KEYS[1], ARGV[1])",
  parseCommand(parser, key, by) {
    parser.pushKey(key);
    parser.push(String(by));
  },
  transformReply: undefined,
});
const redis = createClient({ url: `redis://${address}`, RESP: Number(protocol), scripts: { add } });
redis.on("error", (error) => { throw error; });
await redis.connect();

// strings
assert.equal(await redis.set("nr:s", "v"), "OK");
assert.equal(await redis.get("nr:s"), "v");
assert.equal(await redis.get("nr:none"), null);
assert.equal(await redis.mSet({ "nr:a": "1", "nr:b": "2", "nr:c": "3" }), "OK");
assert.deepEqual(await redis.mGet(["nr:a", "nr:none", "nr:c"]), ["1", null, "3"]);
assert.equal(await redis.del(["nr:a", "nr:b", "nr:c"]), 3);
const binary = Buffer.from(Array.from({ length: 256_000 }, (_, i) => i & 255));
await redis.set("nr:binary", binary);
assert.deepEqual(await redis.withTypeMapping({ [RESP_TYPES.BLOB_STRING]: Buffer }).get("nr:binary"), binary);

// hashes, in CoSky's form: read from the near-cache
for (let version = 0; version < 3; version++) {
  await redis.hSet("nr-{h}:cfg:c", { data: "d", version });
  assert.deepEqual({ ...await redis.hGetAll("nr-{h}:cfg:c") }, { data: "d", version: String(version) });
  assert.deepEqual({ ...await redis.hGetAll("nr-{h}:cfg:c") }, { data: "d", version: String(version) });
}
await assert.rejects(redis.lPush("nr-{h}:cfg:c", "x"), /WRONGTYPE/);

// doubles, a type of its own in RESP3
await redis.zAdd("nr:z", [{ value: "b", score: -2.25e10 }, { value: "a", score: 1.5 }]);
assert.equal(await redis.zScore("nr:z", "a"), 1.5);
assert.deepEqual(await redis.zRangeWithScores("nr:z", 0, -1), [{ value: "b", score: -2.25e10 }, { value: "a", score: 1.5 }]);

// pipelines: what is sent in one turn of the event loop
const sets = Array.from({ length: 1000 }, (_, i) => redis.set(`nr:p${i}`, String(i)));
const gets = Array.from({ length: 1000 }, (_, i) => redis.get(`nr:p${i}`));
assert.deepEqual(await Promise.all(sets), Array(1000).fill("OK"));
assert.deepEqual(await Promise.all(gets), Array.from({ length: 1000 }, (_, i) => String(i)));

// transactions
assert.deepEqual(await redis.multi().set("{nr}a", "1").incr("{nr}a").get("{nr}a").exec(), ["OK", 2, "2"]);
const other = await redis.duplicate().connect();
await redis.watch("{nr}a");
await other.set("{nr}a", "9");
await assert.rejects(redis.multi().incr("{nr}a").exec(), WatchError);

// pub/sub
const messages = [];
const sub = await redis.duplicate().connect();
await new Promise((resolve, reject) => {
  const note = (...message) => { if (messages.push(message) === 2) resolve(); };
  (async () => {
    await sub.subscribe("nr:channel", note);
    await sub.pSubscribe("nr:p*", note);
    await redis.publish("nr:channel", "one");
    await redis.publish("nr:pattern", "two");
  })().catch(reject);
});
assert.deepEqual(messages, [["one", "nr:channel"], ["two", "nr:pattern"]]);
await sub.unsubscribe("nr:channel");
await sub.pUnsubscribe("nr:p*");
assert.equal(String(await sub.get("nr:s")), "v"); // in RESP2 the library now returns a Buffer

// scripts: EVALSHA, then EVAL
assert.equal(await redis.add("nr:script", 2), 2);
assert.equal(await redis.add("nr:script", 3), 5);

// blocking
const job = other.blPop("nr:queue", 20);
await redis.lPush("nr:queue", "job");
assert.deepEqual({ ...await job }, { key: "nr:queue", element: "job" });

await Promise.all([redis, other, sub].map((client) => client.close()));
console.log("all passed");
