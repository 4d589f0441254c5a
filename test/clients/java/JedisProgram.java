import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;

import redis.clients.jedis.AbstractPipeline;
import redis.clients.jedis.AbstractTransaction;
import redis.clients.jedis.Connection;
import redis.clients.jedis.ConnectionPool;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.JedisClientConfig;
import redis.clients.jedis.JedisPubSub;
import redis.clients.jedis.RedisClient;
import redis.clients.jedis.RedisClusterClient;
import redis.clients.jedis.RedisProtocol;
import redis.clients.jedis.Response;
import redis.clients.jedis.ScanIteration;
import redis.clients.jedis.Transaction;
import redis.clients.jedis.UnifiedJedis;
import redis.clients.jedis.exceptions.JedisNoScriptException;
import redis.clients.jedis.params.ScanParams;
import redis.clients.jedis.resps.ScanResult;
import redis.clients.jedis.util.JedisClusterCRC16;

/** Drives Jedis through proxies; everything but address and protocol is the library's default. */
final class JedisProgram implements Targets.Session {
    public static void main(String[] targets) {
        Targets.each(targets, JedisProgram::new);
    }

    private final UnifiedJedis redis;
    private final RedisClusterClient cluster; // null: redis is no cluster client
    private final String p;
    private final String tag;

    private JedisProgram(String name, boolean cluster, String[] addresses, int protocol) {
        JedisClientConfig config = DefaultJedisClientConfig.builder().protocol(protocol == 3 ? RedisProtocol.RESP3 : RedisProtocol.RESP2).build();
        p = "jedis:" + name + ":" + protocol + ":";
        tag = "{" + p + "}";
        if (!cluster) {
            this.cluster = null;
            redis = RedisClient.builder().hostAndPort(HostAndPort.from(addresses[0])).clientConfig(config).build();
            return;
        }
        Set<HostAndPort> nodes = new HashSet<>();
        for (String address : addresses) {
            nodes.add(HostAndPort.from(address));
        }
        this.cluster = RedisClusterClient.builder().nodes(nodes).clientConfig(config).build();
        redis = this.cluster;
    }

    @Override
    public Map<String, Targets.Step> features() {
        Map<String, Targets.Step> all = new LinkedHashMap<>();
        all.put("strings", this::strings);
        all.put("hashes", this::hashes);
        all.put("pipeline", this::pipeline);
        all.put("transaction", this::transaction);
        all.put("watch", this::watch);
        all.put("blocking", this::blocking);
        all.put("pubsub", this::pubsub);
        all.put("scripts", this::scripts);
        all.put("scan", this::scan);
        return all;
    }

    @Override
    public void close() {
        redis.close();
    }

    private void strings() {
        Targets.same(redis.set(p + "s", "v"), "OK");
        Targets.same(redis.get(p + "s"), "v");
        Targets.same(Collections.singletonList(redis.get(p + "none")), Collections.singletonList(null));
        String many = cluster == null ? p : tag; // a cluster client does not split this command
        Targets.same(redis.mset(many + "a", "1", many + "b", "2", many + "c", "3"), "OK");
        Targets.same(redis.mget(many + "a", many + "none", many + "c"), Arrays.asList("1", null, "3"));
        Targets.same(redis.del(many + "a", many + "b", many + "c"), 3L);
        byte[] key = (p + "binary").getBytes(StandardCharsets.UTF_8);
        byte[] value = new byte[256_000];
        for (int i = 0; i < value.length; i++) {
            value[i] = (byte) i;
        }
        redis.set(key, value);
        Targets.same(Arrays.equals(redis.get(key), value), true);
    }

    private void hashes() throws Exception {
        String key = tag + ":cfg:c"; // CoSky's form: read from the near-cache
        for (int version = 0; version < 3; version++) {
            Map<String, String> fields = Map.of("data", "d", "version", String.valueOf(version));
            redis.hset(key, fields);
            for (int i = 0; i < 3; i++) {
                Targets.same(redis.hgetAll(key), fields);
            }
        }
        Targets.fails(() -> redis.lpush(key, "x"), "WRONGTYPE");
        redis.zadd(p + "z", -2.25e10, "b"); // a type of its own in RESP3
        Targets.same(redis.zscore(p + "z", "b"), -2.25e10);
    }

    private void pipeline() {
        List<Response<String>> values = new ArrayList<>();
        try (AbstractPipeline pipeline = redis.pipelined()) {
            for (int i = 0; i < 1000; i++) {
                pipeline.set(p + "p" + i, String.valueOf(i));
                values.add(pipeline.get(p + "p" + i));
            }
            pipeline.sync();
        }
        for (int i = 0; i < 1000; i++) {
            Targets.same(values.get(i).get(), String.valueOf(i));
        }
    }

    /** A connection to the node of key: the cluster client itself knows no transactions. */
    private Connection lent(String key) {
        return cluster.getConnectionFromSlot(JedisClusterCRC16.getSlot(key));
    }

    private void transaction() {
        try (AbstractTransaction multi = cluster == null ? redis.multi() : new Transaction(lent(tag), true, true)) {
            multi.set(tag + "a", "1");
            multi.incr(tag + "a");
            multi.get(tag + "a");
            Targets.same(multi.exec(), Arrays.asList("OK", 2L, "2"));
        }
    }

    private void watch() {
        String key = tag + "w";
        redis.set(key, "1");
        try (AbstractTransaction multi = cluster == null ? redis.transaction(false) : new Transaction(lent(key), false, true)) {
            multi.watch(key);
            redis.set(key, "9");
            multi.multi();
            multi.incr(key);
            Targets.same(Collections.singletonList(multi.exec()), Collections.singletonList(null));
        }
        Targets.same(redis.get(key), "9");
    }

    private void blocking() throws Exception {
        Thread other = new Thread(() -> redis.lpush(p + "queue", "job"));
        other.start();
        Targets.same(redis.blpop(20, p + "queue"), Arrays.asList(p + "queue", "job"));
        other.join();
    }

    private void pubsub() throws Exception {
        BlockingQueue<String> events = new LinkedBlockingQueue<>();
        JedisPubSub sub = new JedisPubSub() {
            @Override
            public void onSubscribe(String channel, int count) {
                events.add("subscribed " + channel + " " + count);
                try {
                    psubscribe(p + "p*");
                } catch (Exception e) {
                    events.add(e.toString());
                }
            }

            @Override
            public void onPSubscribe(String pattern, int count) {
                events.add("subscribed " + pattern + " " + count);
            }

            @Override
            public void onMessage(String channel, String message) {
                events.add(channel + " " + message);
            }

            @Override
            public void onPMessage(String pattern, String channel, String message) {
                events.add(pattern + " " + channel + " " + message);
            }
        };
        Thread listener = new Thread(() -> {
            try {
                redis.subscribe(sub, p + "channel");
            } catch (Exception e) {
                events.add(e.toString());
            }
        });
        listener.start();
        Targets.same(events.take(), "subscribed " + p + "channel 1");
        Targets.same(events.take(), "subscribed " + p + "p* 2");
        redis.publish(p + "channel", "one");
        Targets.same(events.take(), p + "channel one");
        redis.publish(p + "pattern", "two");
        Targets.same(events.take(), p + "p* " + p + "pattern two");
        sub.unsubscribe();
        sub.punsubscribe();
        listener.join();
    }

    private void scripts() {
        String add = "return redis.call('INCRBY', KEYS[1], ARGV[1]) -- " + p;
        List<String> keys = List.of(p + "script");
        String sha = "";
        try {
            redis.evalsha("0123456789012345678901234567890123456789", keys, List.of("1"));
            throw new AssertionError("an unknown script ran");
        } catch (JedisNoScriptException e) {
            sha = redis.scriptLoad(add, p + "script");
        }
        Targets.same(redis.evalsha(sha, keys, List.of("2")), 2L);
        Targets.same(redis.eval(add, keys, List.of("3")), 5L);
    }

    private void scan() {
        Set<String> members = new HashSet<>();
        Set<String> keys = new HashSet<>();
        for (int i = 0; i < 1000; i++) {
            members.add("m" + i);
        }
        redis.sadd(p + "set", members.toArray(new String[0]));
        Set<String> seen = new HashSet<>();
        String cursor = ScanParams.SCAN_POINTER_START;
        do {
            ScanResult<String> page = redis.sscan(p + "set", cursor, new ScanParams().count(100));
            seen.addAll(page.getResult());
            cursor = page.getCursor();
        } while (!cursor.equals(ScanParams.SCAN_POINTER_START));
        Targets.same(seen, members);

        for (int i = 0; i < 100; i++) {
            keys.add(p + "scan:" + i);
            redis.set(p + "scan:" + i, "");
        }
        Set<String> found = new HashSet<>();
        if (cluster == null) {
            ScanIteration pages = redis.scanIteration(100, p + "scan:*");
            while (!pages.isIterationCompleted()) {
                found.addAll(pages.nextBatch().getResult());
            }
        } else {
            for (ConnectionPool node : cluster.getClusterNodes().values()) {
                try (Jedis one = new Jedis(node.getResource())) {
                    ScanParams match = new ScanParams().match(p + "scan:*").count(100);
                    cursor = ScanParams.SCAN_POINTER_START;
                    do {
                        ScanResult<String> page = one.scan(cursor, match);
                        found.addAll(page.getResult());
                        cursor = page.getCursor();
                    } while (!cursor.equals(ScanParams.SCAN_POINTER_START));
                }
            }
        }
        Targets.same(found, keys);
    }
}
