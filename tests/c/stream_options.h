/* The command line, and the lines with jobs. */
#ifndef STREAM_OPTIONS_H
#define STREAM_OPTIONS_H

#include "stream_job.h"
#include <ctype.h>
#include <getopt.h>

/* Options of the process beside `opt`. */
static struct process {
	int json, jobs, stay, with_input;
	uint32_t token;
} process;

static const char usage[] =
	"The receiver, a server:  weir-stream [OPTIONS]\n"
	"The sender, a client:    weir-stream [OPTIONS] HOST\n"
	"\n"
	"Sends a stream of messages with RDMA WRITEs with immediate data over one RC connection, and measures throughput and\n"
	"CPU time. The sender has a number of messages outstanding. The receiver has a receive ready for each of them, and\n"
	"acknowledges messages in batches. The client sends the options of a job to the server over TCP: those of the\n"
	"server's command line have no effect.\n"
	"\n"
	"What is sent\n"
	"  --size BYTES            of each message: 1000, 32K, 32Ki, 1M, 1G at most          [1M]\n"
	"  --outstanding N         messages that are posted and not acknowledged, at most    [4]\n"
	"  --signal N              every N-th send work request is signalled. half: N is half of the outstanding messages;\n"
	"                          equation: from equation 2 of Liu and Russell's study of InfiniBand FDR [half]\n"
	"  --depth N               send queue, at least one more than the outstanding messages [twice as many]\n"
	"  --ack-every N           the receiver acknowledges every N-th message, and the last [half of --outstanding]\n"
	"  --warm-up TIME          before the measurement: 1500, 1.5ms, 2s; without unit: us [50ms]\n"
	"  --time TIME             of the measurement                                        [200ms]\n"
	"  --bytes BYTES           of the measurement, instead of a time\n"
	"  --verify                the receiver compares every byte\n"
	"Memory\n"
	"  --offset BYTES          of a message after the beginning of a page, on both sides [0]\n"
	"  --areas WHICH           each outstanding message has an area of its own (separate), or all have one [separate]\n"
	"Where it runs\n"
	"  --poll SIDES            poll for completions: none, sender, receiver, both. A side that does not, sleeps [none]\n"
	"  --sender-cpus LIST      CPUs of all threads of a process: 0-3,8\n"
	"  --receiver-cpus LIST\n"
	"  --sender-node N         NUMA node of CPUs and memory\n"
	"  --receiver-node N\n"
	"The adapter\n"
	"  --device NAME           the first one found         --ib-port N     its port              [1]\n"
	"  --gid-index N           the first of RoCE v2 and IPv4, else the best one found\n"
	"  --mtu BYTES             upper limit; the MTU of the ports is a limit too          [4096]\n"
	"This program\n"
	"  --port N                TCP port of the server                                    [18516]\n"
	"  --timeout SECONDS       limit of a job's run, of the client for both              [60]\n"
	"  --json                  one JSON object\n"
	"  --jobs                  client: each line of standard input has the options of a job. Those of the command line are\n"
	"                          the defaults. Prints a JSON object for each job, on a line: {\"error\":\"...\"} if it failed\n"
	"  --stay                  server: serves one client after another\n"
	"  --with-input            server: ends if standard input ends before a client comes\n"
	"  --token N               both sides must have the same                             [0]\n"
	"  --help\n"
	"\n"
	"Exit code: 0 measured (with --jobs: each job has its line); 1 bytes are wrong; 2 it could not run, or a transfer\n"
	"failed; 3 not done in time.\n";

enum { SIZE = 1, OUTSTANDING, SIGNAL, DEPTH, ACK_EVERY, WARM_UP, TIME, BYTES, VERIFY, OFFSET, AREAS, POLL, SENDER_CPUS,
       RECEIVER_CPUS, SENDER_NODE, RECEIVER_NODE, OF_PROCESS, DEVICE, IB_PORT, GID_INDEX, MTU, PORT, TIMEOUT, JSON, JOBS,
       STAY, WITH_INPUT, TOKEN, HELP };

static const struct option options[] = {
	{ "size", 1, NULL, SIZE },               { "outstanding", 1, NULL, OUTSTANDING },
	{ "signal", 1, NULL, SIGNAL },           { "depth", 1, NULL, DEPTH },
	{ "ack-every", 1, NULL, ACK_EVERY },     { "warm-up", 1, NULL, WARM_UP },
	{ "time", 1, NULL, TIME },               { "bytes", 1, NULL, BYTES },
	{ "verify", 0, NULL, VERIFY },           { "offset", 1, NULL, OFFSET },
	{ "areas", 1, NULL, AREAS },             { "poll", 1, NULL, POLL },
	{ "sender-cpus", 1, NULL, SENDER_CPUS }, { "receiver-cpus", 1, NULL, RECEIVER_CPUS },
	{ "sender-node", 1, NULL, SENDER_NODE }, { "receiver-node", 1, NULL, RECEIVER_NODE },
	{ "device", 1, NULL, DEVICE },           { "ib-port", 1, NULL, IB_PORT },
	{ "gid-index", 1, NULL, GID_INDEX },     { "mtu", 1, NULL, MTU },
	{ "port", 1, NULL, PORT },               { "timeout", 1, NULL, TIMEOUT },
	{ "json", 0, NULL, JSON },               { "jobs", 0, NULL, JOBS },
	{ "stay", 0, NULL, STAY },               { "with-input", 0, NULL, WITH_INPUT },
	{ "token", 1, NULL, TOKEN },             { "help", 0, NULL, HELP },
	{ 0 },
};

/* The functions below return NULL, or the text of an error. */

static inline const char *time_of(const char *text, uint64_t *ns, const char *option)
{
	static const struct { const char *unit; double ns; } units[] = { { "us", 1e3 }, { "", 1e3 }, { "ms", 1e6 },
									  { "s", 1e9 }, { "ns", 1 } };
	char *rest;
	double value = strtod(text, &rest);

	for (size_t i = 0; rest != text && value >= 0 && value <= 1e12 && i < sizeof(units) / sizeof(*units); i++)
		if (!strcmp(rest, units[i].unit) && value * units[i].ns <= 3.6e12) {
			*ns = value * units[i].ns + 0.5;
			return NULL;
		}
	return wrong("--%s: `%s` is not a time: give 1500 or 1500us, 1.5ms, 2s, an hour at most", option, text);
}

static inline const char *number_of(const char *text, uint32_t *number, const char *option)
{
	char *rest;
	unsigned long value = strtoul(text, &rest, 0);

	if (!isdigit((unsigned char)text[0]) || *rest || value > INT32_MAX)
		return wrong("--%s: `%s` is not a number", option, text);
	*number = value;
	return NULL;
}

/* With K, M, G, or with Ki, Mi, Gi: powers of 1024. */
static inline const char *bytes_of(const char *text, uint64_t *bytes, const char *option)
{
	static const char units[] = "KMG";
	char *rest;
	unsigned long long value = strtoull(text, &rest, 0);
	const char *unit = *rest ? strchr(units, toupper((unsigned char)*rest)) : NULL;
	int shift = unit ? 10 * (unit - units + 1) : 0;

	if (unit)
		rest += rest[1] == 'i' ? 2 : 1;
	if (!isdigit((unsigned char)text[0]) || *rest || value > UINT64_MAX >> 16 >> shift)
		return wrong("--%s: `%s` is not a number of bytes: give 1000, 32K, 32Ki, 1M", option, text);
	*bytes = value << shift;
	return NULL;
}

static inline const char *word_of(const char *text, uint32_t *index, const char *option, const char *const *words)
{
	for (*index = 0; words[*index]; ++*index)
		if (!strcmp(text, words[*index]))
			return NULL;
	return wrong("--%s: `%s` is not known; see --help", option, text);
}

/* A number, or the words `half` and `equation`. */
static inline const char *signal_of(const char *text)
{
	if (!strcmp(text, "half"))
		job.signal = HALF;
	else if (!strcmp(text, "equation"))
		job.signal = EQUATION;
	else if (number_of(text, &job.signal, "signal"))
		return wrong("--signal: `%s` is not a number, nor `half` or `equation`", text);
	return NULL;
}

static inline const char *cpus_of(const char *text, struct place *place, const char *option)
{
	if (strlen(text) >= sizeof(place->cpus) || !*text)
		return wrong("--%s: give a list of CPUs of 1 to %zu characters", option, sizeof(place->cpus) - 1);
	memset(place->cpus, 0, sizeof(place->cpus));
	strcpy(place->cpus, text);
	return NULL;
}

static inline const char *of_job(int option, const char *name)
{
	/* In the order of the bits of SENDER and RECEIVER. */
	static const char *const polls[] = { "none", "sender", "receiver", "both", NULL };
	static const char *const which[] = { "separate", "one", NULL };

	switch (option) {
	case SIZE: return bytes_of(optarg, &job.size, name);
	case OUTSTANDING: return number_of(optarg, &job.outstanding, name);
	case SIGNAL: return signal_of(optarg);
	case DEPTH: return number_of(optarg, &job.depth, name);
	case ACK_EVERY: return number_of(optarg, &job.ack_every, name);
	case WARM_UP: return time_of(optarg, &job.warm_up, name);
	case TIME: job.bytes = 0; return time_of(optarg, &job.time, name);
	case BYTES: job.time = 0; return bytes_of(optarg, &job.bytes, name);
	case VERIFY: job.verify = 1; return NULL;
	case OFFSET: return number_of(optarg, &job.offset, name);
	case AREAS: return word_of(optarg, &job.one, name, which);
	case POLL: return word_of(optarg, &job.polls, name, polls);
	case SENDER_CPUS: return cpus_of(optarg, &job.sender, name);
	case RECEIVER_CPUS: return cpus_of(optarg, &job.receiver, name);
	case SENDER_NODE: return number_of(optarg, (uint32_t *)&job.sender.node, name);
	default: return number_of(optarg, (uint32_t *)&job.receiver.node, name);
	}
}

static inline const char *of_process(int option, const char *name)
{
	switch (option) {
	case DEVICE: opt.device = optarg; return NULL;
	case IB_PORT: return number_of(optarg, (uint32_t *)&opt.ib_port, name);
	case GID_INDEX: return number_of(optarg, (uint32_t *)&opt.gid, name);
	case MTU: return number_of(optarg, (uint32_t *)&opt.mtu, name);
	case PORT: opt.port = optarg; return NULL;
	case TIMEOUT: return number_of(optarg, (uint32_t *)&opt.seconds, name);
	case JSON: process.json = 1; return NULL;
	case JOBS: process.jobs = 1; return NULL;
	case STAY: process.stay = 1; return NULL;
	case WITH_INPUT: process.with_input = 1; return NULL;
	case TOKEN: return number_of(optarg, &process.token, name);
	default: fputs(usage, stdout); exit(0);
	}
}

static inline const char *parse(int argc, char **argv, int in_line)
{
	const char *why = NULL;
	int c, at = 0;

	/* Begins anew, without messages of its own. */
	optind = 0;
	opterr = 0;
	while (!why && (c = getopt_long(argc, argv, ":", options, &at)) != -1) {
		if (c == ':')
			return wrong("%s: a value is missing", argv[optind - 1]);
		if (c == '?')
			return wrong("`%s` is not an option; see --help", argv[optind - 1]);
		if (c > OF_PROCESS && in_line)
			return wrong("--%s is not an option of a job", options[at].name);
		why = c < OF_PROCESS ? of_job(c, options[at].name) : of_process(c, options[at].name);
	}
	if (!why && in_line && optind < argc)
		return wrong("`%s` is not an option", argv[optind]);
	return why;
}

/* The options of a job, separated by blanks. */
static inline const char *parse_line(char *line)
{
	char *words[128] = { PROGRAM };
	int count = 1;

	for (char *word = strtok(line, " \t\r\n"); word; word = strtok(NULL, " \t\r\n")) {
		if (count == 127)
			return "the line has too many words";
		words[count++] = word;
	}
	return parse(count, words, 1);
}

static inline void parse_command(int argc, char **argv)
{
	const char *why = parse(argc, argv, 0);

	if (why)
		die("%s", why);
	if (argc > optind + 1)
		die("give one host only, without `%s`; see --help", argv[optind + 1]);
	opt.host = argv[optind];
	if (opt.mtu && opt.mtu != 256 && opt.mtu != 512 && opt.mtu != 1024 && opt.mtu != 2048 && opt.mtu != 4096)
		die("--mtu: 256, 512, 1024, 2048 or 4096");
	if (opt.seconds < 1 || opt.seconds > 86400)
		die("--timeout: 1 to 86400 seconds");
	if (process.jobs && !opt.host)
		die("--jobs: the client reads jobs; give it the server's host");
	if ((process.stay || process.with_input) && opt.host)
		die("--stay and --with-input are for the server, which has no HOST");
	job.seconds = opt.seconds;
	/* The lines of --jobs may change what is wrong. */
	if (!process.jobs && job_wrong())
		die("%s", job_wrong());
}

#endif
