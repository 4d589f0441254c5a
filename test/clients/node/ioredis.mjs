// Drives ioredis through proxies: node ioredis.mjs TARGET... (see targets.mjs)
// Everything but the address is the library's default; it speaks RESP2 only.

import assert from "node:assert/strict";
import Redis from "ioredis";
import { each } from "./targets.mjs";

await each([2], async ({ name, cluster, nodes }) => {
  const opened = [];
  const open = () => {
    const client = cluster ? new Redis.Cluster(nodes) : new Redis(nodes[0].port, nodes[0].host);
    client.on("error", (error) => console.log(`${name}: ${error}`));
    opened.push(client);
    return client;
  };
  const redis = open();
  const p = `io:${name}:`;
  const tag = `{${p}}`;
  const many = cluster ? tag : p; // a cluster client itself refuses keys of several slots

  return {
    async strings() {
      assert.equal(await redis.set(p + "s", "v"), "OK");
      assert.equal(await redis.get(p + "s"), "v");
      assert.equal(await redis.get(p + "none"), null);
      assert.equal(await redis.mset({ [many + "a"]: 1, [many + "b"]: 2, [many + "c"]: 3 }), "OK");
      assert.deepEqual(await redis.mget(many + "a", many + "none", many + "c"), ["1", null, "3"]);
      assert.equal(await redis.del(many + "a", many + "b", many + "c"), 3);
      const binary = Buffer.from(Array.from({ length: 256_000 }, (_, i) => i & 255));
      await redis.set(p + "binary", binary);
      assert.deepEqual(await redis.getBuffer(p + "binary"), binary);
    },

    async hashes() {
      const key = tag + ":cfg:c"; // CoSky's form: read from the near-cache
      for (let version = 0; version < 3; version++) {
        await redis.hset(key, { data: "d", version });
        for (let i = 0; i < 3; i++) assert.deepEqual(await redis.hgetall(key), { data: "d", version: String(version) });
      }
      await assert.rejects(redis.lpush(key, "x"), /^ReplyError: WRONGTYPE/);
    },

    async pipeline() {
      const pipeline = redis.pipeline();
      for (let i = 0; i < 1000; i++) pipeline.set(`${tag}p${i}`, i).get(`${tag}p${i}`);
      assert.deepEqual((await pipeline.exec()).filter((_, i) => i % 2), Array.from({ length: 1000 }, (_, i) => [null, String(i)]));
      // What the library sends without waiting is pipelined, too.
      const sets = Array.from({ length: 1000 }, (_, i) => redis.set(`${p}p${i}`, i));
      const gets = Array.from({ length: 1000 }, (_, i) => redis.get(`${p}p${i}`));
      assert.deepEqual(await Promise.all(sets), Array(1000).fill("OK"));
      assert.deepEqual(await Promise.all(gets), Array.from({ length: 1000 }, (_, i) => String(i)));
    },

    async transaction() {
      assert.deepEqual(await redis.multi().set(tag + "a", 1).incr(tag + "a").get(tag + "a").exec(), [[null, "OK"], [null, 2], [null, "2"]]);
    },

    async watch() {
      await redis.set(tag + "w", 1);
      await redis.watch(tag + "w");
      await open().set(tag + "w", 9);
      assert.equal(await redis.multi().incr(tag + "w").exec(), null);
      assert.deepEqual(await redis.multi().incr(tag + "w").exec(), [[null, 10]]);
    },

    async blocking() {
      const job = open().blpop(p + "queue", 20);
      await redis.lpush(p + "queue", "job");
      assert.deepEqual(await job, [p + "queue", "job"]);
    },

    async pubsub() {
      const messages = [];
      const sub = open();
      const both = new Promise((resolve) => {
        const note = (...message) => { if (messages.push(message) === 2) resolve(); };
        sub.on("message", note);
        sub.on("pmessage", note);
      });
      assert.equal(await sub.subscribe(p + "channel"), 1);
      assert.equal(await sub.psubscribe(p + "p*"), 2);
      await redis.publish(p + "channel", "one");
      await redis.publish(p + "pattern", "two");
      await both;
      assert.deepEqual(messages, [[p + "channel", "one"], [p + "p*", p + "pattern", "two"]]);
      assert.equal(await sub.unsubscribe(p + "channel"), 1);
      assert.equal(await sub.punsubscribe(p + "p*"), 0);
      assert.equal(await sub.get(p + "s"), "v");
    },

    async scripts() { // EVALSHA, then EVAL
      redis.defineCommand("add", { numberOfKeys: 1, lua: "return redis.call('INCRBY', KEYS[1], ARGV[1])" });
      assert.equal(await redis.add(p + "script", 2), 2);
      assert.equal(await redis.add(p + "script", 3), 5);
    },

    async scan() {
      const members = Array.from({ length: 1000 }, (_, i) => `m${i}`);
      await redis.sadd(p + "set", members);
      const seen = new Set();
      for await (const some of redis.sscanStream(p + "set", { count: 100 })) some.forEach((m) => seen.add(m));
      assert.equal(seen.size, 1000);
      const keys = Array.from({ length: 100 }, (_, i) => `${p}scan:${i}`);
      await Promise.all(keys.map((key) => redis.set(key, "")));
      const found = new Set();
      for (const node of cluster ? redis.nodes("master") : [redis]) {
        for await (const some of node.scanStream({ match: p + "scan:*", count: 100 })) some.forEach((key) => found.add(key));
      }
      assert.deepEqual([...found].sort(), keys.sort());
    },

    close: () => Promise.all(opened.map((client) => client.quit())),
  };
});
