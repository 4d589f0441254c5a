import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;

/** What the programs of this directory have in common: targets, and lines about them. */
final class Targets {
    /** Longer than any step takes: a step that is not over by then never will be. */
    private static final long LIMIT_SECONDS = 30;

    /** A step that throws when something is not as it should be. */
    interface Step {
        void run() throws Exception;
    }

    /** One target in one protocol; its features by name, in order. */
    interface Session extends AutoCloseable {
        Map<String, Step> features();

        @Override
        void close();
    }

    /** Opens a target: its name, whether a cluster client is asked for, its addresses, 2 or 3. */
    interface Opener {
        Session open(String name, boolean cluster, String[] addresses, int protocol) throws Exception;
    }

    /**
     * Runs every feature of every target in each protocol. Targets are
     * NAME=single|cluster@HOST:PORT[,HOST:PORT]... Prints one line per target, protocol and
     * feature that works; what does not is printed with its error, whose stack goes to
     * standard error.
     */
    static void each(String[] targets, Opener opener) {
        ExecutorService executor = Executors.newCachedThreadPool(task -> {
            Thread thread = new Thread(task);
            thread.setDaemon(true);
            return thread;
        });
        for (String target : targets) {
            String[] parts = target.split("[=@]");
            for (int protocol = 2; protocol <= 3; protocol++) {
                String prefix = parts[0] + " RESP" + protocol + " ";
                try (Session session = opener.open(parts[0], parts[1].equals("cluster"), parts[2].split(","), protocol)) {
                    session.features().forEach((feature, step) -> run(executor, prefix + feature, step));
                } catch (Exception e) {
                    System.out.println(prefix + "open and close: " + e);
                }
            }
        }
    }

    private static void run(ExecutorService executor, String line, Step step) {
        Future<?> done = executor.submit(() -> {
            step.run();
            return null;
        });
        try {
            done.get(LIMIT_SECONDS, TimeUnit.SECONDS);
            System.out.println(line);
        } catch (Exception e) {
            System.out.println(line + ": " + (e.getCause() == null ? e : e.getCause()));
            e.printStackTrace();
        }
    }

    /** Compares, by value. */
    static void same(Object got, Object want) {
        if (!want.equals(got)) {
            throw new AssertionError("got " + got + ", want " + want);
        }
    }

    /** Runs a step that must fail with an error whose text contains word. */
    static void fails(Step step, String word) throws Exception {
        try {
            step.run();
        } catch (Exception e) {
            if (String.valueOf(e.getMessage()).contains(word)) {
                return;
            }
            throw e;
        }
        throw new AssertionError("no error " + word);
    }
}
