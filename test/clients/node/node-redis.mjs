// Drives node-redis through proxies: node node-redis.mjs TARGET... (see targets.mjs)
// Everything but the address and the protocol is the library's default.

import assert from "node:assert/strict";
import { createClient, createCluster, defineScript, RESP_TYPES, WatchError } from "redis";
import { each } from "./targets.mjs";

const add = defineScript({
  NUMBER_OF_KEYS: 1,
  SCRIPT: "return redis.call('INCRBY', KEYS[1], ARGV[1])",
  parseCommand(parser, key, by) {
    parser.pushKey(key);
    parser.push(String(by));
  },
  transformReply: undefined,
});

await each([2, 3], async ({ name, cluster, nodes, protocol }) => {
  const opened = [];
  const open = () => {
    const urls = nodes.map(({ host, port }) => ({ url: `redis://${host}:${port}` }));
    const common = { RESP: protocol, scripts: { add } };
    const client = cluster ? createCluster({ rootNodes: urls, ...common }) : createClient({ ...urls[0], ...common });
    client.on("error", (error) => console.log(`${name}: ${error}`));
    opened.push(client);
    return client.connect();
  };
  const redis = await open();
  const p = `nr:${name}:${protocol}:`;
  const tag = `{${p}}`;
  const many = cluster ? tag : p; // a cluster client does not split commands

  const features = {
    async strings() {
      assert.equal(await redis.set(p + "s", "v"), "OK");
      assert.equal(await redis.get(p + "s"), "v");
      assert.equal(await redis.get(p + "none"), null);
      assert.equal(await redis.mSet({ [many + "a"]: "1", [many + "b"]: "2", [many + "c"]: "3" }), "OK");
      assert.deepEqual(await redis.mGet([many + "a", many + "none", many + "c"]), ["1", null, "3"]);
      assert.equal(await redis.del([many + "a", many + "b", many + "c"]), 3);
      const binary = Buffer.from(Array.from({ length: 256_000 }, (_, i) => i & 255));
      await redis.set(p + "binary", binary);
      assert.deepEqual(await redis.withTypeMapping({ [RESP_TYPES.BLOB_STRING]: Buffer }).get(p + "binary"), binary);
    },

    async hashes() {
      const key = tag + ":cfg:c"; // CoSky's form: read from the near-cache
      for (let version = 0; version < 3; version++) {
        await redis.hSet(key, { data: "d", version });
        for (let i = 0; i < 3; i++) assert.deepEqual({ ...await redis.hGetAll(key) }, { data: "d", version: String(version) });
      }
      await assert.rejects(redis.lPush(key, "x"), /WRONGTYPE/);
      await redis.zAdd(p + "z", [{ value: "b", score: -2.25e10 }, { value: "a", score: 1.5 }]); // a type of its own in RESP3
      assert.equal(await redis.zScore(p + "z", "a"), 1.5);
      assert.deepEqual(await redis.zRangeWithScores(p + "z", 0, -1), [{ value: "b", score: -2.25e10 }, { value: "a", score: 1.5 }]);
    },

    async pipeline() { // what is sent in one turn of the event loop
      const sets = Array.from({ length: 1000 }, (_, i) => redis.set(`${p}p${i}`, String(i)));
      const gets = Array.from({ length: 1000 }, (_, i) => redis.get(`${p}p${i}`));
      assert.deepEqual(await Promise.all(sets), Array(1000).fill("OK"));
      assert.deepEqual(await Promise.all(gets), Array.from({ length: 1000 }, (_, i) => String(i)));
    },

    async transaction() {
      assert.deepEqual(await redis.multi().set(tag + "a", "1").incr(tag + "a").get(tag + "a").exec(), ["OK", 2, "2"]);
    },

    async watch() {
      const other = await open();
      await redis.set(tag + "w", "1");
      await redis.watch(tag + "w");
      await other.set(tag + "w", "9");
      await assert.rejects(redis.multi().incr(tag + "w").exec(), WatchError);
      assert.deepEqual(await redis.multi().incr(tag + "w").exec(), [10]);
    },

    async blocking() {
      const job = (await open()).blPop(p + "queue", 20);
      await redis.lPush(p + "queue", "job");
      assert.deepEqual({ ...await job }, { key: p + "queue", element: "job" });
    },

    async pubsub() {
      const messages = [];
      const sub = await open();
      await new Promise((resolve, reject) => {
        const note = (...message) => { if (messages.push(message) === 2) resolve(); };
        (async () => {
          await sub.subscribe(p + "channel", note);
          await sub.pSubscribe(p + "p*", note);
          await redis.publish(p + "channel", "one");
          await redis.publish(p + "pattern", "two");
        })().catch(reject);
      });
      assert.deepEqual(messages, [["one", p + "channel"], ["two", p + "pattern"]]);
      await sub.unsubscribe(p + "channel");
      await sub.pUnsubscribe(p + "p*");
      assert.equal(String(await sub.get(p + "s")), "v"); // in RESP2 the library now returns a Buffer
    },

    async scripts() { // EVALSHA, then EVAL
      assert.equal(await redis.add(p + "script", 2), 2);
      assert.equal(await redis.add(p + "script", 3), 5);
    },

    async scan() {
      await redis.sAdd(p + "set", Array.from({ length: 1000 }, (_, i) => `m${i}`));
      const seen = new Set();
      let cursor = "0";
      do {
        const page = await redis.sScan(p + "set", cursor, { COUNT: 100 });
        page.members.forEach((member) => seen.add(member));
        cursor = page.cursor;
      } while (cursor !== "0");
      assert.equal(seen.size, 1000);
      const keys = Array.from({ length: 100 }, (_, i) => `${p}scan:${i}`);
      await Promise.all(keys.map((key) => redis.set(key, "")));
      const found = new Set();
      for (const node of cluster ? await Promise.all(redis.masters.map((master) => redis.nodeClient(master))) : [redis]) {
        for await (const some of node.scanIterator({ MATCH: p + "scan:*", COUNT: 100 })) some.forEach((key) => found.add(key));
      }
      assert.deepEqual([...found].sort(), keys.sort());
    },

    close: () => Promise.all(opened.map((client) => client.close())),
  };
  if (cluster) delete features.watch; // the library has none there
  return features;
});
