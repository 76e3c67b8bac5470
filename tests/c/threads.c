/* Verbs from many threads, on any adapter.
 *
 *   threads stress   [-d DEVICE] [-g GID] [-s SEED] [-T SECONDS] [-t THREADS]
 *   threads others   [-d DEVICE] [-g GID] [-s SEED] [-T SECONDS] [-t THREADS]
 *   threads pingpong [-d DEVICE] [-g GID] [-s SEED] [-n COUNT] [-t THREADS]
 *
 * stress: every thread makes random calls on random objects, in one process. At the end each work request must have
 * completed once, and no call may hang.
 * others: the same for datagrams, multicast groups, an SRQ, and other objects beside RC QPs.
 * pingpong: two processes with the same number of threads, each with a QP. All threads sleep until an event comes,
 * after pauses of random length. The program detects a missing event. */
#include <stdatomic.h>
#include "threads_rig.h"
#include "threads_stress.h"
#include "threads_others.h"
#include "threads_pingpong.h"

int main(int argc, char **argv)
{
	int option;

	opt.seed = time(NULL) ^ (uint64_t)getpid() << 32;
	while ((option = getopt(argc, argv, "d:g:s:n:T:t:")) != -1)
		switch (option) {
		case 'd': opt.device = optarg; break;
		case 'g': opt.gid = atoi(optarg); break;
		case 's': opt.seed = strtoull(optarg, NULL, 0); break;
		case 'n': opt.count = atol(optarg); break;
		case 'T': opt.seconds = atoi(optarg); break;
		case 't': opt.threads = atoi(optarg); break;
		default: die("unknown option");
		}
	if (optind + 1 != argc || opt.threads < 1 || opt.threads > MAX_THREADS)
		die("usage: threads stress|others|pingpong [options]");
	printf("%s: seed %" PRIu64 "\n", argv[optind], opt.seed);
	fflush(stdout);
	if (!strcmp(argv[optind], "stress"))
		return stress();
	if (!strcmp(argv[optind], "others"))
		return all_others();
	if (!strcmp(argv[optind], "pingpong"))
		return pingpong();
	die("unknown mode: give stress, others or pingpong");
}
