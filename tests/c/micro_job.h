/* The parameters of a run of the micro-benchmark. The client sends them to the server. */
#ifndef MICRO_JOB_H
#define MICRO_JOB_H

#include "rig.h"

#define PAGE 4096
#define MAX_BYTES (1ull << 30)
#define MAX_OPS (1u << 20)
#define MAX_QPS 16384u
/* Values of the papers' benchmark (thesis, appendix B). */
#define PAPERS_CQ 131072
#define PAPERS_WRS 8192
#define PAPERS_MTU 4096

enum { READ, WRITE, SEND };

static const char *const kind_name[] = { "READ", "WRITE", "SEND" };

enum { ON_CLIENT = 1, ON_SERVER = 2 };

/* Both sides must be built with the same version. */
#define VERSION 2

static struct job {
	uint32_t version, operation, second, size, num_ops, num_qps, odp, touched, wrong_peer;
	uint32_t rnr_timer, ack_timeout, retry_count, max_rd_atomic, mtu;
	/* The time limit of the run. */
	uint32_t seconds;
	/* Each operation is posted an interval after the completion of the one before it. */
	uint32_t in_turn;
	/* Pages that are released at a time after the run; 0: none. */
	uint32_t invalidate;
	uint32_t unused;
	/* Nanoseconds; 0 disables a workaround. */
	uint64_t interval, dummy_every, again_after;
} job = { .version = VERSION, .operation = READ, .second = READ, .size = 100, .num_ops = 1, .num_qps = 1, .rnr_timer = 14,
	  .ack_timeout = 1, .retry_count = 7, .max_rd_atomic = 4, .mtu = PAPERS_MTU };

static inline uint32_t kind_of(uint32_t i)
{
	return i ? job.second : job.operation;
}

static inline uint64_t offset_of(uint32_t i)
{
	return (uint64_t)job.size * i;
}

static inline uint64_t all_bytes(void)
{
	return (offset_of(job.num_ops) + PAGE - 1) / PAGE * PAGE;
}

/* The time of an RNR timer code, ms (IBTA, table 45). */
static inline double rnr_ms(uint32_t code)
{
	static const double ms[] = { 655.36, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.16, 0.24, 0.32,
				     0.48,   0.64, 0.96, 1.28, 1.92, 2.56, 3.84, 5.12, 7.68, 10.24, 15.36,
				     20.48,  30.72, 40.96, 61.44, 81.92, 122.88, 163.84, 245.76, 327.68, 491.52 };

	return ms[code & 31];
}

/* NULL, or the error in the job. */
static inline const char *job_wrong(void)
{
	if (job.size < 1)
		return "--size: at least 1";
	if (job.num_ops < 1 || job.num_ops > MAX_OPS)
		return "--num-ops: 1 to 1048576 are possible";
	if (job.num_qps < 1 || job.num_qps > MAX_QPS)
		return "--num-qps: 1 to 16384 are possible";
	if (all_bytes() > MAX_BYTES)
		return "all operations together are more than 1 GiB";
	if (job.rnr_timer > 31)
		return "--rnr-timer: the code is 0 to 31";
	if (job.ack_timeout > 31)
		return "--ack-timeout: the exponent is 0 to 31";
	if (job.retry_count > 7)
		return "--retry-count: 0 to 7 are possible";
	if (job.max_rd_atomic > 128 || (!job.max_rd_atomic && (job.operation == READ || job.second == READ)))
		return "--max-rd-atomic: READs need 1 at least, and no adapter has more than 128";
	if (job.mtu != 256 && job.mtu != 512 && job.mtu != 1024 && job.mtu != 2048 && job.mtu != 4096)
		return "--mtu: 256, 512, 1024, 2048 or 4096";
	if ((job.dummy_every && job.dummy_every < 10000) || (job.again_after && job.again_after < 10000))
		return "--dummy-every, --again-after: at least 10 us, or the workaround takes all the time";
	if (job.dummy_every && job.again_after)
		return "--dummy-every and --again-after: give only one of them";
	if (job.wrong_peer && !job.ack_timeout)
		return "--wrong-peer: with an ACK timeout of 0 the adapter never gives up";
	if (job.invalidate && !job.odp)
		return "--invalidate: there is no ODP memory; give --odp too";
	if (job.wrong_peer && job.touched)
		return "--wrong-peer: no peer is connected to touch pages; omit --touched";
	return NULL;
}

#endif
