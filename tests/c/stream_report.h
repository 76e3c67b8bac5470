/* The client's output: text, or a line of JSON. */
#ifndef STREAM_REPORT_H
#define STREAM_REPORT_H

#include "stream_options.h"
#include "stream_run.h"

/* What each side tells the other after the run. The state is the first byte: a side that still runs looks at it. */
struct outcome {
	uint8_t state;
	char why[TEXT];
	struct used used;
	uint64_t sleeps, messages, checked, wrong;
};

static inline double seconds(void)
{
	return run.end - run.start;
}

static inline double bits_per_second(uint64_t messages)
{
	return messages * (double)job.size * 8 / seconds();
}

static inline const char *polls_name(void)
{
	static const char *const name[] = { "none", "sender", "receiver", "both" };

	return name[job.polls & 3];
}

/* Prints a string of JSON. */
static inline void json_string(const char *text)
{
	putchar('"');
	for (; *text; text++)
		if (*text == '"' || *text == '\\')
			printf("\\%c", *text);
		else if ((unsigned char)*text < ' ')
			printf("\\u%04x", *text);
		else
			putchar(*text);
	putchar('"');
}

/* `ends`: the program ends, and no job comes after this one. */
static inline void report_json_error(const char *why, int ends)
{
	printf("{\"error\":");
	json_string(why);
	printf(ends ? ",\"ends\":true}\n" : "}\n");
	fflush(stdout);
}

static inline void json_side(const char *name, const struct outcome *side)
{
	printf("\"%s\":{\"user\":%.6f,\"system\":%.6f,\"sleeps\":%" PRIu64 "},", name, side->used.user, side->used.system,
	       side->sleeps);
}

static inline void report_json(const struct outcome *mine, const struct outcome *theirs)
{
	printf("{\"size\":%" PRIu64 ",\"outstanding\":%u,\"device\":", job.size, job.outstanding);
	json_string(ibv_get_device_name(rig.context->device));
	printf(",\"mtu\":%u,\"offset\":%u,\"areas\":\"%s\",\"poll\":\"%s\",", stream.mtu, job.offset,
	       job.one ? "one" : "separate", polls_name());
	printf("\"messages\":%" PRIu64 ",\"bytes\":%" PRIu64 ",\"seconds\":%.9f,\"gbits\":%.9g,\"acks\":%" PRIu64 ",",
	       mine->messages, mine->messages * job.size, seconds(), bits_per_second(mine->messages) * 1e-9, run.acks);
	printf("\"signal\":%u,\"depth\":%u,", stream.signal, stream.depth);
	json_side("sender", mine);
	json_side("receiver", theirs);
	printf("\"checked\":%" PRIu64 ",\"wrong\":%" PRIu64 "}\n", theirs->checked, theirs->wrong);
	fflush(stdout);
}

static inline void text_side(const char *name, const struct outcome *side, int polls)
{
	double all = side->used.user + side->used.system;

	printf("%-14s %.3f s user, %.3f s system: %.0f %% of a core; ", name, side->used.user, side->used.system,
	       all / seconds() * 100);
	if (polls)
		printf("it polls\n");
	else
		printf("%" PRIu64 " sleeps\n", side->sleeps);
}

static inline void report_text(const struct outcome *mine, const struct outcome *theirs)
{
	double bits = bits_per_second(mine->messages);

	printf("RDMA WRITE with immediate data of %" PRIu64 " bytes, %u outstanding, every %u signalled (send queue %u), every %u "
	       "acknowledged\n",
	       job.size, job.outstanding, stream.signal, stream.depth, ack_every());
	printf("offset %u, %s, polling: %s\n", job.offset, job.one ? "one area" : "separate areas", polls_name());
	printf("%s, port %d, GID %d, MTU %u\n", ibv_get_device_name(rig.context->device), opt.ib_port, rig.gid_index,
	       stream.mtu);
	printf("%-14s %.3f Gbit/s, %.1f MB/s, %.0f messages/s\n", "throughput", bits * 1e-9, bits / 8e6,
	       mine->messages / seconds());
	printf("%-14s %" PRIu64 " messages, %" PRIu64 " ACKs in %.6f s\n", "stream", mine->messages, run.acks, seconds());
	text_side("sender", mine, job.polls & SENDER);
	text_side("receiver", theirs, job.polls & RECEIVER);
	if (job.verify)
		printf("%-14s %" PRIu64 " compared, %" PRIu64 " wrong\n", "bytes", theirs->checked, theirs->wrong);
	fflush(stdout);
}

#endif
