/*
 * odp: measures the cost of on-demand paging between two processes, on any adapter with ODP.
 *
 *   odp [options] MODE              the server, waits
 *   odp [options] MODE HOST         the client, drives and prints a JSON object per line
 *
 *   warm      pinned and warm ODP memory in turn               cold      single pages: cold, warm, prefetched
 *   figures   latency and bandwidth over the size, the first iterations, prefetches (paper, section III)
 *   core      exchange, then compute, in less memory than both need (section VII-E)
 *   loggp     the extended LogGP model: its parameters, and messages as it describes them (sections IV to VI)
 *
 *   -d DEVICE   the first one found         -g INDEX   GID index: the first RoCE v2 GID of IPv4, else of IPv6
 *   -p PORT     TCP side channel: 18515     -t SECONDS limit for a completion: 30
 *   -r ROUNDS   of all modes but core: 5    -f FACTOR  scales the length of runs: 1
 *   core:       -m pinned|odp    -x BYTES to exchange   -w BYTES to compute over   -n PASSES   -k WORK per page
 *
 * Both sides take the same options. The exit code is 2 if the program could not run.
 */
#define PROGRAM "odp"
#include "odp_core.h"
#include "odp_figures.h"
#include "odp_rendezvous.h"

static struct {
	const char *mode;
	int rounds, passes, work;
	double factor;
	enum memory memory;
	size_t communication, computation;
} job = { .rounds = 5, .passes = 10, .work = 10, .factor = 1, .memory = ON_DEMAND, .communication = 64 << 20,
	  .computation = 64 << 20 };

static const char *const modes[] = { "warm", "cold", "figures", "core", "loggp" };

static void options(int argc, char **argv)
{
	int c, known = 0;

	while ((c = getopt(argc, argv, "d:g:p:t:r:f:m:x:w:n:k:")) != -1) {
		switch (c) {
		case 'd': opt.device = optarg; break;
		case 'g': opt.gid = atoi(optarg); break;
		case 'p': opt.port = optarg; break;
		case 't': opt.seconds = atoi(optarg); break;
		case 'r': job.rounds = atoi(optarg); break;
		case 'f': job.factor = atof(optarg); break;
		case 'm': job.memory = strcmp(optarg, "pinned") ? ON_DEMAND : PINNED; break;
		case 'x': job.communication = strtoull(optarg, NULL, 0); break;
		case 'w': job.computation = strtoull(optarg, NULL, 0); break;
		case 'n': job.passes = atoi(optarg); break;
		case 'k': job.work = atoi(optarg); break;
		default: die("usage: see the comment at the top of tests/c/odp.c");
		}
	}
	for (size_t i = 0; argv[optind] && i < sizeof(modes) / sizeof(*modes); i++)
		known |= !strcmp(argv[optind], modes[i]);
	if (!known || job.rounds < 1 || job.rounds > 1000 || !(job.factor > 0 && job.factor <= 100))
		die("usage: see the comment at the top of tests/c/odp.c");
	job.mode = argv[optind];
	opt.host = argv[optind + 1];
	/* The rig's own buffers are not used. */
	opt.max = PAGE;
}

/* Long timeouts: a side that loses its core for a while must not end the measurement. */
static const struct conn_options patient = { .send_wr = 64, .recv_wr = 64, .timeout = 18, .retry_cnt = 7,
					     .rnr_retry = 7, .inline_data = 128 };

int main(int argc, char **argv)
{
	struct ibv_device_attr_ex attr;
	struct conn c;

	opt.seconds = 30;
	options(argc, argv);
	side_open(opt.host, opt.port);
	rig_open();
	if (ibv_query_device_ex(rig.context, NULL, &attr) || !(attr.odp_caps.general_caps & IBV_ODP_SUPPORT))
		if (job.memory == ON_DEMAND)
			die("%s has no on-demand paging", ibv_get_device_name(rig.context->device));
	conn_open(&c, &patient);
	if (!strcmp(job.mode, "warm"))
		warm(&c, job.rounds, job.factor);
	if (!strcmp(job.mode, "cold"))
		cold(&c, job.rounds);
	if (!strcmp(job.mode, "figures")) {
		int count = 1000 * job.factor;

		sweeps(&c, count < 20 ? 20 : count);
		iterations(&c);
		prefetch_costs(&c);
		sides(&c, 2 * job.rounds + 1);
	}
	if (!strcmp(job.mode, "loggp"))
		loggp(&c, job.rounds, job.factor, 4.096 * (1ul << patient.timeout));
	if (!strcmp(job.mode, "core"))
		out_of_core(&c, job.communication, job.computation, job.passes, job.work, job.memory);
	conn_close(&c);
	rig_close();
	return tally.failed ? 2 : 0;
}
