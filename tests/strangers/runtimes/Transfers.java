/* Threads of a Java virtual machine transfer data, while another one makes the machine use its own handler of SIGSEGV, and its
 * garbage collector, which stops all threads.
 *
 *   java -Djava.library.path=FOLDER Transfers DEVICE */
public class Transfers {
    static final int THREADS = 4;
    static final int COUNT = 500;

    /** How many of so many transfers were right. */
    static native int right(String device, int count);

    public static void main(String[] arguments) throws InterruptedException {
        System.loadLibrary("transfers");
        int[] right = new int[THREADS];
        Thread[] threads = new Thread[THREADS];
        for (int i = 0; i < THREADS; i++) {
            int number = i;
            threads[i] = new Thread(() -> right[number] = right(arguments[0], COUNT));
            threads[i].start();
        }
        long caught = 0;
        while (anyRuns(threads)) {
            for (int i = 0; i < 20000; i++)
                caught += caught(i % 2 == 0 ? null : new int[64]);
            System.gc();
        }
        int sum = 0;
        for (int i = 0; i < THREADS; i++) {
            threads[i].join();
            sum += right[i];
        }
        System.out.println(caught > 0 && sum == THREADS * COUNT ? "all right" : sum + " right, " + caught + " caught");
    }

    static boolean anyRuns(Thread[] threads) {
        for (Thread thread : threads)
            if (thread.isAlive())
                return true;
        return false;
    }

    /** The machine finds out by SIGSEGV that there is no array. */
    static int caught(int[] array) {
        try {
            return array[0];
        } catch (NullPointerException exception) {
            return 1;
        }
    }
}
