/*
 * micro: the micro-benchmark of T. Fukuoka's thesis "Finding and Analyzing Performance Pitfalls of On-Demand Paging
 * of InfiniBand" (figure 5.1, appendix B), on any adapter. One process waits; the other posts operations at intervals
 * and prints when each completed.
 *
 * Needs only libibverbs. `weir-micro --help` has the details.
 */
#define PROGRAM "weir-micro"
#include "micro_report.h"
#include <getopt.h>
#include <signal.h>

static const char usage[] =
	"The server:  weir-micro [OPTIONS]\n"
	"The client:  weir-micro [OPTIONS] HOST\n"
	"\n"
	"Posts NUM-OPS operations, INTERVAL apart, operation i at offset SIZE * i of a page-aligned buffer, on QP\n"
	"i mod NUM-QPS; then waits for all of them and prints when each completed. The client sends its options to the\n"
	"server over TCP. Of the server's own options only --port and those of the adapter have an effect.\n"
	"\n"
	"What is posted\n"
	"  --operation KIND        read, write or send                                       [read]\n"
	"  --second KIND           the kind of all operations after the first                [as --operation]\n"
	"  --size BYTES            of each operation                                         [100]\n"
	"  --num-ops N             operations                                                [1]\n"
	"  --num-qps N             QPs                                                       [1]\n"
	"  --interval TIME         between two posts, slept with usleep: 1500, 1.5ms, 2s;\n"
	"                          without unit: us. 0: no sleep                             [0]\n"
	"  --in-turn               posts each operation after the completion of the one before it, and INTERVAL later,\n"
	"                          for which it polls\n"
	"Memory\n"
	"  --odp WHERE             ODP memory: none, client, server or both                  [none]\n"
	"  --touched               touches all pages but the first operation's beforehand\n"
	"  --invalidate PAGES      after the run, each side with ODP memory releases its pages (madvise), PAGES at a time;\n"
	"                          first the client, then the server\n"
	"Attributes of the QPs\n"
	"  --rnr-timer CODE        0 to 31: the timer in the RNR NAKs of a receiver          [14: 1.28 ms]\n"
	"  --ack-timeout N         0 to 31: C_ACK; T_tr is 4.096 us * 2^N, 0 is forever      [1]\n"
	"  --retry-count N         0 to 7; RNR NAKs are retried forever                      [7]\n"
	"  --max-rd-atomic N       READs under way on each QP                                [4]\n"
	"  --mtu BYTES             upper limit; the MTU of the ports is a limit too          [4096]\n"
	"Workarounds\n"
	"  --dummy-every TIME      each QP with an outstanding operation gets one more, of one byte, with the kind and\n"
	"                          the address of its first one\n"
	"  --again-after TIME      issues what has not completed by then again, on a spare QP\n"
	"Timeout\n"
	"  --wrong-peer            sends to a QP that does not exist: the time until the adapter gives up\n"
	"The adapter\n"
	"  --device NAME           the first one found         --ib-port N     its port              [1]\n"
	"  --gid-index N           the first of RoCE v2 and IPv4, else the best one found\n"
	"This program\n"
	"  --port N                TCP port of the server                                    [18515]\n"
	"  --timeout SECONDS       the client gives up, and the server with it               [60]\n"
	"  --json                  one JSON object; times in us\n"
	"  --hold                  at the end, waits for the end of standard input: the adapter's counters can be read\n"
	"  --help\n"
	"\n"
	"Exit code: 0 measured; 1 an operation failed, or bytes are wrong (with --wrong-peer: no operation failed);\n"
	"2 it could not run; 3 not done in time.\n";

static int json, hold;

/* A time in nanoseconds. */
static uint64_t time_of(const char *text, const char *option)
{
	static const struct { const char *unit; double ns; } units[] = { { "us", 1e3 }, { "", 1e3 }, { "ms", 1e6 },
									  { "s", 1e9 }, { "ns", 1 } };
	char *rest;
	double value = strtod(text, &rest);

	for (size_t i = 0; rest != text && value >= 0 && value <= 1e12 && i < sizeof(units) / sizeof(*units); i++)
		if (!strcmp(rest, units[i].unit) && value * units[i].ns <= 3.6e12)
			return value * units[i].ns + 0.5;
	die("--%s: `%s` is not a time: give 1500 or 1500us, 1.5ms, 2s, an hour at most", option, text);
}

static uint32_t number_of(const char *text, const char *option)
{
	char *rest;
	unsigned long value = strtoul(text, &rest, 0);

	if (rest == text || *rest || text[0] == '-' || value > UINT32_MAX)
		die("--%s: `%s` is not a number", option, text);
	return value;
}

static uint32_t word_of(const char *text, const char *option, const char *const *words)
{
	for (uint32_t i = 0; words[i]; i++)
		if (!strcmp(text, words[i]))
			return i;
	die("--%s: `%s` is not known; see --help", option, text);
}

enum { OPERATION = 1, SECOND, SIZE, NUM_OPS, NUM_QPS, INTERVAL, IN_TURN, ODP, TOUCHED, RNR_TIMER, ACK_TIMEOUT, RETRY_COUNT,
       MAX_RD_ATOMIC, MTU, DUMMY_EVERY, AGAIN_AFTER, WRONG_PEER, DEVICE, IB_PORT, GID_INDEX, PORT, TIMEOUT, JSON, HELP,
       INVALIDATE, HOLD };

static const struct option options[] = {
	{ "operation", 1, NULL, OPERATION },     { "second", 1, NULL, SECOND },
	{ "size", 1, NULL, SIZE },               { "num-ops", 1, NULL, NUM_OPS },
	{ "num-qps", 1, NULL, NUM_QPS },         { "interval", 1, NULL, INTERVAL },
	{ "in-turn", 0, NULL, IN_TURN },
	{ "odp", 1, NULL, ODP },                 { "touched", 0, NULL, TOUCHED },
	{ "rnr-timer", 1, NULL, RNR_TIMER },     { "ack-timeout", 1, NULL, ACK_TIMEOUT },
	{ "retry-count", 1, NULL, RETRY_COUNT }, { "max-rd-atomic", 1, NULL, MAX_RD_ATOMIC },
	{ "mtu", 1, NULL, MTU },                 { "dummy-every", 1, NULL, DUMMY_EVERY },
	{ "again-after", 1, NULL, AGAIN_AFTER }, { "wrong-peer", 0, NULL, WRONG_PEER },
	{ "device", 1, NULL, DEVICE },           { "ib-port", 1, NULL, IB_PORT },
	{ "gid-index", 1, NULL, GID_INDEX },     { "port", 1, NULL, PORT },
	{ "timeout", 1, NULL, TIMEOUT },         { "json", 0, NULL, JSON },
	{ "help", 0, NULL, HELP },               { "invalidate", 1, NULL, INVALIDATE },
	{ "hold", 0, NULL, HOLD },               { 0 },
};

static void parse(int argc, char **argv)
{
	static const char *const kinds[] = { "read", "write", "send", NULL };
	static const char *const odp_sides[] = { "none", "client", "server", "both", NULL };
	int c, at, second = 0;
	const char *wrong;

	while ((c = getopt_long(argc, argv, "", options, &at)) != -1) {
		const char *name = c == '?' ? "" : options[at].name;

		switch (c) {
		case OPERATION: job.operation = word_of(optarg, name, kinds); break;
		case SECOND: job.second = word_of(optarg, name, kinds); second = 1; break;
		case SIZE: job.size = number_of(optarg, name); break;
		case NUM_OPS: job.num_ops = number_of(optarg, name); break;
		case NUM_QPS: job.num_qps = number_of(optarg, name); break;
		case INTERVAL: job.interval = time_of(optarg, name); break;
		case IN_TURN: job.in_turn = 1; break;
		case ODP: job.odp = word_of(optarg, name, odp_sides); break;
		case TOUCHED: job.touched = 1; break;
		case INVALIDATE: job.invalidate = number_of(optarg, name); break;
		case HOLD: hold = 1; break;
		case RNR_TIMER: job.rnr_timer = number_of(optarg, name); break;
		case ACK_TIMEOUT: job.ack_timeout = number_of(optarg, name); break;
		case RETRY_COUNT: job.retry_count = number_of(optarg, name); break;
		case MAX_RD_ATOMIC: job.max_rd_atomic = number_of(optarg, name); break;
		case MTU: job.mtu = number_of(optarg, name); break;
		case DUMMY_EVERY: job.dummy_every = time_of(optarg, name); break;
		case AGAIN_AFTER: job.again_after = time_of(optarg, name); break;
		case WRONG_PEER: job.wrong_peer = 1; break;
		case DEVICE: opt.device = optarg; break;
		case IB_PORT: opt.ib_port = number_of(optarg, name); break;
		case GID_INDEX: opt.gid = number_of(optarg, name); break;
		case PORT: opt.port = optarg; break;
		case TIMEOUT: opt.seconds = number_of(optarg, name); break;
		case JSON: json = 1; break;
		case HELP: fputs(usage, stdout); exit(0);
		default: die("see --help");
		}
	}
	if (!second)
		job.second = job.operation;
	if (argc > optind + 1)
		die("give one host only, without `%s`; see --help", argv[optind + 1]);
	opt.host = argv[optind];
	if (opt.seconds < 1 || opt.seconds > 86400)
		die("--timeout: 1 to 86400 seconds");
	job.seconds = opt.seconds;
	wrong = job_wrong();
	if (wrong)
		die("%s", wrong);
}

/* The last resort: a call does not return. */
static void give_up(int signal)
{
	static const char said[] = PROGRAM ": not done in time; the other side or the adapter does not respond\n";
	ssize_t n = write(2, said, sizeof(said) - 1);

	(void)n;
	(void)signal;
	_exit(3);
}

static void open_device(void)
{
	int count = 0;
	struct ibv_device **list = ibv_get_device_list(&count);

	if (!list || !count)
		die("there is no RDMA device here (under Weir: weir run -- weir-micro ...)");
	ibv_free_device_list(list);
	/* The rig's own buffers are not used. */
	opt.max = PAGE;
	rig_open();
	for (int e = IBV_MTU_256; e <= IBV_MTU_4096; e++)
		if (128u << e == job.mtu && (int)rig.port.active_mtu > e)
			rig.port.active_mtu = e;
}

/* Both sides use the client's job. */
static void exchange_job(void)
{
	struct job theirs;

	exchange(&job, &theirs, sizeof(job));
	if (theirs.version != VERSION)
		die("the other side has another version");
	if (!client) {
		job = theirs;
		opt.seconds = job.seconds;
		alarm(opt.seconds + 15);
	}
	exchange_failure(client ? NULL : job_wrong());
}

int main(int argc, char **argv)
{
	struct result { uint64_t checked, wrong, whole; double cpu; } mine = { 0 }, theirs;
	double before;

	opt.seconds = 60;
	parse(argc, argv);
	signal(SIGALRM, give_up);
	if (opt.host)
		alarm(opt.seconds + 15);
	side_open(opt.host, opt.port);
	alarm(opt.seconds + 15);
	exchange_job();
	open_device();
	exchange_failure(odp_wrong());
	memory_open();
	qps_open();
	if (job.touched) {
		barrier();
		touch();
		barrier();
	}
	fill();
	run.posted = calloc(job.num_ops, sizeof(double));
	run.completed = calloc(job.num_ops, sizeof(double));
	run.again = calloc(job.num_ops, sizeof(double));
	if (!run.posted || !run.completed || !run.again)
		die("no memory for %u operations", job.num_ops);
	if (client)
		measure_sleep();
	else
		receives();
	barrier();
	before = cpu_now();
	run.deadline = now() + opt.seconds;
	if (client)
		measure();
	mine.whole = !run.late && !run.failed;
	exchange(&mine, &theirs, sizeof(mine));
	mine.cpu = cpu_now() - before;
	if (client || theirs.whole)
		verify();
	mine.checked = run.checked;
	mine.wrong = run.wrong;
	exchange(&mine, &theirs, sizeof(mine));
	run.far_cpu = theirs.cpu;
	run.far_checked = theirs.checked;
	run.far_wrong = theirs.wrong;
	if (job.invalidate && mine.whole && theirs.whole)
		for (int turn = 0; turn < 2; turn++) {
			if (turn == !client && job.odp & (client ? ON_CLIENT : ON_SERVER))
				release_pages();
			barrier();
		}
	if (client)
		json ? report_json() : report_text();
	fflush(stdout);
	while (hold && getchar() != EOF)
		;
	micro_close();
	rig_close();
	if (run.late)
		return 3;
	if (!client)
		return run.wrong != 0;
	if (job.wrong_peer)
		return run.failed == 0;
	return run.failed || run.wrong + run.far_wrong;
}
