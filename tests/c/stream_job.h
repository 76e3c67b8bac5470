/* The parameters of a stream of messages. The client, which sends the messages, sends them to the server too. */
#ifndef STREAM_JOB_H
#define STREAM_JOB_H

#include "rig.h"

#define PAGE 4096
#define MAX_SIZE (1ull << 30)
#define MAX_MEMORY (4ull << 30)
#define MAX_OUTSTANDING 4096
/* Room for the text of an error. */
#define TEXT 400

/* Bits of the sides. */
enum { SENDER = 1, RECEIVER = 2 };

/* Values of `signal`. */
#define HALF UINT32_MAX
#define EQUATION (UINT32_MAX - 1)

/* Both sides must be built with the same version. */
#define VERSION 1

struct place {
	/* A list, "0-3,8"; empty: as the kernel chooses. */
	char cpus[256];
	/* -1: as the kernel chooses. */
	int32_t node, unused;
};

static struct job {
	/* There are no more jobs: the client's exit code plus one. */
	uint32_t end;
	/* The time limit of the run. */
	uint32_t seconds;
	/* `signal` is a period, or HALF, or EQUATION. `depth` and `ack_every` may be 0: the default. */
	uint32_t outstanding, signal, depth, offset, ack_every;
	/* All messages have one area. */
	uint32_t one, verify;
	/* The sides that poll. */
	uint32_t polls;
	struct place sender, receiver;
	/* Nanoseconds. `time` is 0 if `bytes` is not. */
	uint64_t size, warm_up, time, bytes;
} job = { .outstanding = 4, .signal = HALF, .sender.node = -1, .receiver.node = -1, .size = 1 << 20, .warm_up = 50000000,
	  .time = 200000000 };

/* Makes the text of an error. There is only one at a time. */
__attribute__((format(printf, 1, 2))) static inline const char *wrong(const char *format, ...)
{
	static char text[TEXT];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	return text;
}

/* From one area to the next. */
static inline uint64_t stride(void)
{
	return (job.offset + job.size + PAGE - 1) / PAGE * PAGE;
}

static inline uint32_t areas(void)
{
	return job.one ? 1 : job.outstanding;
}

static inline uint64_t all_bytes(void)
{
	return stride() * areas();
}

/* Where a message begins in the memory of each side. */
static inline uint64_t offset_of(uint64_t number)
{
	return number % areas() * stride() + job.offset;
}

static inline uint32_t wanted_depth(void)
{
	return job.depth ? job.depth : 2 * job.outstanding;
}

static inline uint32_t ack_every(void)
{
	uint32_t half = job.outstanding / 2;

	if (job.ack_every)
		return job.ack_every;
	return half ? half : 1;
}

/* ACKs that the sender's program may have to take at the same time: each is for ack_every() messages of those that are
 * outstanding, and one for the last message of a phase. */
static inline uint32_t most_acks(void)
{
	return job.outstanding / ack_every() + 2;
}

static inline const struct place *my_place(void)
{
	return client ? &job.sender : &job.receiver;
}

/* The signalling period, with a send queue of this depth. */
static inline uint32_t signal_period(uint32_t depth)
{
	uint32_t half = job.signal == HALF ? job.outstanding / 2 : depth / 2, free = depth - job.outstanding;

	if (job.signal != HALF && job.signal != EQUATION)
		return job.signal;
	if (job.signal == EQUATION) {
		/* Q. Liu, R. Russell, "A Performance Study of InfiniBand Fourteen Data Rate (FDR)", equation 2. */
		if (job.size > 16 << 10 && job.size < 128 << 10)
			return 1;
		half = half < free ? half : free;
	}
	return half ? half : 1;
}

/* NULL, or the error in the job. */
static inline const char *job_wrong(void)
{
	if (job.size < 1 || job.size > MAX_SIZE)
		return "--size: 1 byte to 1 GiB are possible";
	if (job.outstanding < 1 || job.outstanding > MAX_OUTSTANDING)
		return wrong("--outstanding: 1 to %d messages are possible", MAX_OUTSTANDING);
	if (job.offset >= PAGE)
		return wrong("--offset: 0 to %d are possible", PAGE - 1);
	if (!job.signal)
		return "--signal: give 1 or more, or `half` or `equation`";
	if (job.depth && job.depth <= job.outstanding)
		return wrong("--depth: at least %u for %u outstanding messages", job.outstanding + 1, job.outstanding);
	if (job.ack_every > job.outstanding)
		return wrong("--ack-every: at most the outstanding messages, %u: the sender waits for an ACK then",
			     job.outstanding);
	if (all_bytes() > MAX_MEMORY)
		return wrong("%u areas of %" PRIu64 " bytes are more than 4 GiB: choose a smaller --size or --outstanding, or "
			     "--areas one", areas(), stride());
	if (job.verify && job.one && job.outstanding > 1)
		return "--verify: outstanding messages overwrite one another with --areas one: choose --areas separate, or "
		       "--outstanding 1";
	if (!job.time && !job.bytes)
		return "give --time or --bytes, more than 0";
	if (job.seconds < 1 || job.seconds > 86400)
		return "--timeout: 1 to 86400 seconds";
	if (job.warm_up + job.time >= job.seconds * 1000000000ull)
		return wrong("--warm-up and --time are longer than the time limit of %u s: choose a longer --timeout",
			     job.seconds);
	return NULL;
}

#endif
