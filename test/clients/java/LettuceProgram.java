import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

import io.lettuce.core.AbstractRedisClient;
import io.lettuce.core.ClientOptions;
import io.lettuce.core.KeyScanCursor;
import io.lettuce.core.KeyValue;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisFuture;
import io.lettuce.core.RedisURI;
import io.lettuce.core.ScanArgs;
import io.lettuce.core.ScanCursor;
import io.lettuce.core.ScriptOutputType;
import io.lettuce.core.TransactionResult;
import io.lettuce.core.ValueScanCursor;
import io.lettuce.core.api.StatefulConnection;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.api.sync.RedisCommands;
import io.lettuce.core.cluster.ClusterClientOptions;
import io.lettuce.core.cluster.RedisClusterClient;
import io.lettuce.core.cluster.SlotHash;
import io.lettuce.core.cluster.api.StatefulRedisClusterConnection;
import io.lettuce.core.cluster.api.async.RedisClusterAsyncCommands;
import io.lettuce.core.cluster.api.sync.RedisClusterCommands;
import io.lettuce.core.protocol.ProtocolVersion;
import io.lettuce.core.pubsub.RedisPubSubListener;
import io.lettuce.core.pubsub.StatefulRedisPubSubConnection;

/** Drives Lettuce through proxies; everything but address and protocol is the library's default. */
final class LettuceProgram implements Targets.Session {
    public static void main(String[] targets) {
        Targets.each(targets, LettuceProgram::new);
        System.exit(0); // threads of the library's timers need not be waited for
    }

    private final AbstractRedisClient client;
    private final RedisClient single; // null: a cluster client
    private final RedisClusterClient cluster;
    private final StatefulRedisConnection<String, String> singleConnection;
    private final StatefulRedisClusterConnection<String, String> clusterConnection;
    private final RedisClusterCommands<String, String> redis; // what both kinds have
    private final RedisClusterAsyncCommands<String, String> async;
    private final String p;
    private final String tag;

    private LettuceProgram(String name, boolean cluster, String[] addresses, int protocol) {
        p = "lettuce:" + name + ":" + protocol + ":";
        tag = "{" + p + "}";
        ProtocolVersion version = protocol == 3 ? ProtocolVersion.RESP3 : ProtocolVersion.RESP2;
        if (cluster) {
            List<RedisURI> nodes = new ArrayList<>();
            for (String address : addresses) {
                nodes.add(RedisURI.create("redis://" + address));
            }
            this.cluster = RedisClusterClient.create(nodes);
            this.cluster.setOptions(ClusterClientOptions.builder().protocolVersion(version).build());
            client = this.cluster;
            clusterConnection = this.cluster.connect();
            single = null;
            singleConnection = null;
            redis = clusterConnection.sync();
            async = clusterConnection.async();
        } else {
            single = RedisClient.create("redis://" + addresses[0]);
            single.setOptions(ClientOptions.builder().protocolVersion(version).build());
            client = single;
            singleConnection = single.connect();
            this.cluster = null;
            clusterConnection = null;
            redis = singleConnection.sync();
            async = singleConnection.async();
        }
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
        client.shutdown(0, 1, TimeUnit.SECONDS);
    }

    /** Commands on the connection to the node that serves the key, where MULTI and WATCH are. */
    private RedisCommands<String, String> at(String key) {
        if (single != null) {
            return singleConnection.sync();
        }
        String node = clusterConnection.getPartitions().getMasterBySlot(SlotHash.getSlot(key)).getNodeId();
        return clusterConnection.getConnection(node).sync();
    }

    private void strings() {
        Targets.same(redis.set(p + "s", "v"), "OK");
        Targets.same(redis.get(p + "s"), "v");
        Targets.same(redis.exists(p + "none"), 0L);
        Map<String, String> many = Map.of(p + "a", "1", p + "b", "2", p + "c", "3");
        Targets.same(redis.mset(many), "OK"); // the cluster client splits it
        Targets.same(redis.mget(p + "a", p + "none", p + "c"),
            Arrays.asList(KeyValue.just(p + "a", "1"), KeyValue.empty(p + "none"), KeyValue.just(p + "c", "3")));
        Targets.same(redis.del(p + "a", p + "b", p + "c"), 3L);
        String big = "0123456789".repeat(25_600);
        redis.set(p + "big", big);
        Targets.same(redis.get(p + "big").equals(big), true);
    }

    private void hashes() throws Exception {
        String key = tag + ":cfg:c"; // CoSky's form: read from the near-cache
        for (int version = 0; version < 3; version++) {
            Map<String, String> fields = Map.of("data", "d", "version", String.valueOf(version));
            redis.hset(key, fields);
            for (int i = 0; i < 3; i++) {
                Targets.same(redis.hgetall(key), fields);
            }
        }
        Targets.fails(() -> redis.lpush(key, "x"), "WRONGTYPE");
        redis.zadd(p + "z", -2.25e10, "b"); // a type of its own in RESP3
        Targets.same(redis.zscore(p + "z", "b"), -2.25e10);
    }

    private void pipeline() throws Exception {
        List<RedisFuture<String>> values = new ArrayList<>();
        for (int i = 0; i < 1000; i++) {
            async.set(p + "p" + i, String.valueOf(i));
            values.add(async.get(p + "p" + i));
        }
        for (int i = 0; i < 1000; i++) {
            Targets.same(values.get(i).get(), String.valueOf(i));
        }
    }

    private void transaction() {
        RedisCommands<String, String> node = at(tag);
        node.multi();
        node.set(tag + "a", "1");
        node.incr(tag + "a");
        node.get(tag + "a");
        TransactionResult result = node.exec();
        Targets.same(result.stream().toList(), Arrays.asList("OK", 2L, "2"));
    }

    private void watch() {
        String key = tag + "w";
        redis.set(key, "1");
        RedisCommands<String, String> node = at(tag);
        node.watch(key);
        try (StatefulConnection<String, String> other = single == null ? cluster.connect() : single.connect()) {
            if (other instanceof StatefulRedisConnection<String, String> one) {
                one.sync().set(key, "9");
            } else if (other instanceof StatefulRedisClusterConnection<String, String> many) {
                many.sync().set(key, "9");
            }
        }
        node.multi();
        node.incr(key);
        Targets.same(node.exec().wasDiscarded(), true);
        Targets.same(redis.get(key), "9");
    }

    private void blocking() throws Exception {
        RedisFuture<KeyValue<String, String>> job;
        if (single == null) {
            StatefulRedisClusterConnection<String, String> other = cluster.connect();
            job = other.async().blpop(20, p + "queue");
        } else {
            job = single.connect().async().blpop(20, p + "queue");
        }
        redis.lpush(p + "queue", "job");
        Targets.same(job.get(), KeyValue.just(p + "queue", "job"));
    }

    private void pubsub() throws Exception {
        BlockingQueue<String> events = new LinkedBlockingQueue<>();
        StatefulRedisPubSubConnection<String, String> sub = single == null ? cluster.connectPubSub() : single.connectPubSub();
        sub.addListener(new RedisPubSubListener<>() {
            @Override
            public void message(String channel, String message) {
                events.add(channel + " " + message);
            }

            @Override
            public void message(String pattern, String channel, String message) {
                events.add(pattern + " " + channel + " " + message);
            }

            @Override
            public void subscribed(String channel, long count) {
                events.add("subscribed " + channel + " " + count);
            }

            @Override
            public void psubscribed(String pattern, long count) {
                events.add("subscribed " + pattern + " " + count);
            }

            @Override
            public void unsubscribed(String channel, long count) {
                events.add("unsubscribed " + channel + " " + count);
            }

            @Override
            public void punsubscribed(String pattern, long count) {
                events.add("unsubscribed " + pattern + " " + count);
            }
        });
        sub.sync().subscribe(p + "channel");
        Targets.same(events.take(), "subscribed " + p + "channel 1");
        sub.sync().psubscribe(p + "p*");
        Targets.same(events.take(), "subscribed " + p + "p* 2");
        redis.publish(p + "channel", "one");
        Targets.same(events.take(), p + "channel one");
        redis.publish(p + "pattern", "two");
        Targets.same(events.take(), p + "p* " + p + "pattern two");
        sub.sync().unsubscribe(p + "channel");
        Targets.same(events.take(), "unsubscribed " + p + "channel 1");
        sub.close();
    }

    private void scripts() throws Exception {
        String add = "return redis.call('INCRBY', KEYS[1], ARGV[1]) -- " + p;
        String[] keys = {p + "script"};
        Targets.fails(() -> redis.evalsha("0123456789012345678901234567890123456789", ScriptOutputType.INTEGER, keys, "1"), "NOSCRIPT");
        String sha = redis.scriptLoad(add);
        Targets.same(redis.<Long>evalsha(sha, ScriptOutputType.INTEGER, keys, "2"), 2L);
        Targets.same(redis.<Long>eval(add, ScriptOutputType.INTEGER, keys, "3"), 5L);
    }

    private void scan() throws Exception {
        Set<String> members = new HashSet<>();
        for (int i = 0; i < 1000; i++) {
            members.add("m" + i);
        }
        redis.sadd(p + "set", members.toArray(new String[0]));
        Set<String> seen = new HashSet<>();
        ValueScanCursor<String> page = redis.sscan(p + "set", ScanArgs.Builder.limit(100));
        seen.addAll(page.getValues());
        while (!page.isFinished()) {
            page = redis.sscan(p + "set", page, ScanArgs.Builder.limit(100));
            seen.addAll(page.getValues());
        }
        Targets.same(seen, members);

        Set<String> keys = new HashSet<>();
        List<RedisFuture<String>> sets = new ArrayList<>();
        for (int i = 0; i < 100; i++) {
            keys.add(p + "scan:" + i);
            sets.add(async.set(p + "scan:" + i, ""));
        }
        for (RedisFuture<String> set : sets) {
            Targets.same(set.get(), "OK");
        }
        ScanArgs match = ScanArgs.Builder.matches(p + "scan:*").limit(100);
        Set<String> found = new HashSet<>();
        KeyScanCursor<String> next = redis.scan(ScanCursor.INITIAL, match); // the cluster client goes on to the next node
        found.addAll(next.getKeys());
        while (!next.isFinished()) {
            next = redis.scan(next, match);
            found.addAll(next.getKeys());
        }
        Targets.same(found, keys);
    }
}
