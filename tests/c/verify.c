/*
 * verify: two processes that compare every byte and every completion status of RC or XRC, on any adapter.
 *
 *   verify [options]             the server, waits
 *   verify [options] HOST        the client, drives
 *
 *   -d DEVICE   the first one found         -g INDEX   GID index: the first RoCE v2 GID of IPv4, else of IPv6
 *   -p PORT     TCP side channel: 18515     -s SEED    of sizes, offsets, operations: 1 (both sides the same)
 *   -n COUNT    of random operations: 300   -m BYTES   longest message: 1 MiB
 *   -t SECONDS  limit for a completion: 10  -v         prints a line for every test
 *   -c RC|XRC   the service: RC
 *   -o HOW      ODP memory: 1 anonymous, 2 a file mapping, 3 an implicit region
 *   -l          the link loses packets: a NAK is sent only once; if it is lost, the request exceeds its retries
 *   -f          no fenced requests, and not the case "fence"
 *   -u BYTES    path MTU: the smaller of both ports'
 *   -k CASES    these cases only, separated by commas; both sides the same
 *
 * Ends with "N passed, N failed" of both sides; the exit code is 0 if nothing failed, 2 if it could not run.
 */
#include "rig.h"

#include "data.h"
#include "events.h"
#include "faults.h"
#include "memory.h"
#include "queues.h"
#include "windows.h"

static const struct {
	const char *name;
	void (*run)(struct conn *);
	/* Only with RC: cases that need a QP for both directions, or its own receive queue. */
	int rc;
} cases[] = {
	{ "sizes", sizes, 0 },
	{ "inline", inline_data, 0 },
	{ "sge lists", sge_lists, 0 },
	{ "random", random_operations, 0 },
	{ "unsignalled", unsignalled_runs, 0 },
	{ "fence", fences, 0 },
	{ "atomics", atomics, 0 },
	{ "crowd", shared_atomic, 0 },
	{ "changing", read_of_changing_memory, 0 },
	{ "null region", null_regions, 0 },
	{ "device memory", device_memory, 0 },
	{ "changed region", changed_regions, 0 },
	{ "windows 1", windows_1, 1 },
	{ "windows 2", windows_2, 1 },
	{ "queue full", full_queues, 1 },
	{ "states", states, 1 },
	{ "flush", flushed, 1 },
	{ "remote faults", remote_faults, 0 },
	{ "local faults", local_faults, 0 },
	{ "too long", too_long, 0 },
	{ "RNR", receiver_not_ready, 0 },
	{ "retry", silent_peer, 0 },
	{ "events", event_driven, 0 },
};

/* Whether a list of names, separated by commas, has this name. Without a list every name is wanted. */
static int is_in(const char *name, const char *list)
{
	size_t length = strlen(name);

	for (const char *at = list; at; at = (at = strchr(at, ',')) ? at + 1 : NULL)
		if (!strncmp(at, name, length) && (at[length] == ',' || !at[length]))
			return 1;
	return !list;
}

/* Ends the process if the list has a name that no case has. */
static void known(const char *list)
{
	size_t wanted = list != NULL, found = 0;

	for (const char *at = list; at && (at = strchr(at, ',')); at++)
		wanted++;
	for (size_t i = 0; list && i < sizeof(cases) / sizeof(cases[0]); i++)
		found += is_in(cases[i].name, list);
	if (found != wanted)
		die("-k: %zu of %zu cases exist", found, wanted);
}

static void options(int argc, char **argv)
{
	int c;

	while ((c = getopt(argc, argv, "c:d:g:k:p:s:n:m:t:o:u:vlf")) != -1) {
		switch (c) {
		case 'c':
			opt.xrc = !strcmp(optarg, "XRC");
			if (!opt.xrc && strcmp(optarg, "RC"))
				die("-c: RC or XRC");
			break;
		case 'd': opt.device = optarg; break;
		case 'g': opt.gid = atoi(optarg); break;
		case 'p': opt.port = optarg; break;
		case 's': opt.seed = strtoull(optarg, NULL, 0); break;
		case 'n': opt.count = atoi(optarg); break;
		case 'm': opt.max = strtoul(optarg, NULL, 0); break;
		case 't': opt.seconds = atoi(optarg); break;
		case 'o': opt.demand = atoi(optarg); break;
		case 'v': opt.verbose = 1; break;
		case 'l': opt.lossy = 1; break;
		case 'f': opt.unfenced = 1; break;
		case 'u': opt.mtu = atoi(optarg); break;
		case 'k': opt.cases = optarg; break;
		default: die("usage: see the comment at the top of tests/c/verify.c");
		}
	}
	opt.host = argv[optind];
	known(opt.cases);
	if (opt.mtu && (opt.mtu < 256 || opt.mtu > 4096 || (opt.mtu & (opt.mtu - 1))))
		die("-u: 256, 512, 1024, 2048 or 4096");
	if (opt.max < 8192)
		die("-m: at least 8192");
}

int main(int argc, char **argv)
{
	struct tally theirs;
	struct conn main_conn;

	options(argc, argv);
	setvbuf(stdout, NULL, _IOLBF, 0);
	side_open(opt.host, opt.port);
	rig_open();
	rng = opt.seed;
	conn_open(&main_conn, &default_options);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		uint64_t passed = tally.passed, failed = tally.failed;

		if ((opt.xrc && cases[i].rc) || !is_in(cases[i].name, opt.cases))
			continue;
		cases[i].run(&main_conn);
		barrier();
		if (tally.passed + tally.failed > passed + failed)
			printf("%-14s %s  %" PRIu64 " passed, %" PRIu64 " failed\n", cases[i].name,
			       client ? "client" : "server", tally.passed - passed, tally.failed - failed);
	}
	conn_close(&main_conn);
	rig_close();
	exchange(&tally, &theirs, sizeof(tally));
	printf("%" PRIu64 " bytes verified, %" PRIu64 " wrong\n", tally.bytes + theirs.bytes,
	       tally.wrong + theirs.wrong);
	printf("%" PRIu64 " passed, %" PRIu64 " failed\n", tally.passed + theirs.passed,
	       tally.failed + theirs.failed);
	return tally.failed + theirs.failed != 0;
}
