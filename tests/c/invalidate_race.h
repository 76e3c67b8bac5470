/* Calls that race with transfers. */
#ifndef INVALIDATE_RACE_H
#define INVALIDATE_RACE_H

#include "invalidate_counters.h"
#include "invalidate_rig.h"

#include <pthread.h>

#define RDMA (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_ON_DEMAND)

/*
 * The memory of the region at `at`, and a second mapping of it at `seen`. mremap moves it to `there`. `spare`
 * replaces it, and has a second mapping too.
 */
static struct { uint8_t *at, *seen, *there, *spare_seen; int file, spare; struct ibv_mr *mr; } memory;

/* The contents of the spare memory. */
#define SPARE 62

static int map_memory(int file, int private)
{
	int flags = (private ? MAP_PRIVATE : MAP_SHARED) | MAP_FIXED_NOREPLACE;

	return mmap(memory.at, LEN, PROT_READ | PROT_WRITE, flags, file, 0) == memory.at;
}

static void make_memory(int private)
{
	memory.file = memfd_create("memory", MFD_CLOEXEC);
	memory.spare = memfd_create("spare", MFD_CLOEXEC);
	/* Addresses that no other mapping gets, with space between them and other mappings. */
	uint8_t *room = mmap(NULL, 64 * LEN, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	memory.at = room + 16 * LEN;
	memory.there = room + 48 * LEN;
	if (ftruncate(memory.file, LEN) || ftruncate(memory.spare, LEN) || room == MAP_FAILED ||
	    munmap(memory.at, LEN) || !map_memory(memory.file, private))
		die("no memory: %s", strerror(errno));
	memory.seen = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, memory.file, 0);
	memory.spare_seen = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, memory.spare, 0);
	memory.mr = ibv_reg_mr(pd, memory.at, LEN, RDMA);
	if (memory.seen == MAP_FAILED || memory.spare_seen == MAP_FAILED || !memory.mr)
		die("no on-demand region: %s", strerror(errno));
}

enum call { MUNMAP, MREMAP, MPROTECT, DONTNEED, REPLACE };

static void change(enum call call, int prot)
{
	long r = -1;
	int flags = MREMAP_MAYMOVE | MREMAP_FIXED, fixed = MAP_SHARED | MAP_FIXED, both = PROT_READ | PROT_WRITE;

	switch (call) {
	case MUNMAP:
		r = opt.raw ? syscall(SYS_munmap, memory.at, LEN) : munmap(memory.at, LEN);
		break;
	case MREMAP:
		r = opt.raw ? syscall(SYS_mremap, memory.at, LEN, LEN, flags, memory.there)
			    : (long)mremap(memory.at, LEN, LEN, flags, memory.there);
		r = r == (long)memory.there ? 0 : -1;
		break;
	case MPROTECT:
		r = opt.raw ? syscall(SYS_mprotect, memory.at, LEN, prot) : mprotect(memory.at, LEN, prot);
		break;
	case DONTNEED:
		r = opt.raw ? syscall(SYS_madvise, memory.at, LEN, MADV_DONTNEED)
			    : madvise(memory.at, LEN, MADV_DONTNEED);
		break;
	case REPLACE:
		r = opt.raw ? syscall(SYS_mmap, memory.at, LEN, both, fixed, memory.spare, 0)
			    : (long)mmap(memory.at, LEN, both, fixed, memory.spare, 0);
		r = r == (long)memory.at ? 0 : -1;
		break;
	}
	if (r)
		die("the call failed: %s", strerror(errno));
}

static void restore(enum call call)
{
	int flags = MREMAP_MAYMOVE | MREMAP_FIXED;

	switch (call) {
	case MUNMAP:
		if (!map_memory(memory.file, 0))
			die("cannot map the memory again: %s", strerror(errno));
		break;
	case MREMAP:
		if (mremap(memory.there, LEN, LEN, flags, memory.at) != memory.at)
			die("mremap: %s", strerror(errno));
		break;
	case MPROTECT:
		if (mprotect(memory.at, LEN, PROT_READ | PROT_WRITE))
			die("mprotect: %s", strerror(errno));
		break;
	case DONTNEED:
		break;
	case REPLACE:
		if (mmap(memory.at, LEN, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory.file, 0) != memory.at)
			die("mmap: %s", strerror(errno));
		break;
	}
}

/* Another thread does the near side's transfers: the thread that changes the memory must not wait for them. */
static _Atomic long posted, ended;
static enum op posted_op;
static int ended_status;

static void *transfer(void *first)
{
	for (long n = (long)first;; n++) {
		wait_for(&posted, n);
		if (posted_op == QUIT)
			return NULL;
		post(posted_op == SEND ? IBV_WR_SEND : IBV_WR_RDMA_READ, (uintptr_t)memory.at, memory.mr->lkey,
		     shared->far.addr, shared->far.rkey, LEN);
		ended_status = completion(op_names[posted_op]);
		ended = n;
	}
}

/* Begins a transfer; a WRITE or FETCH writes `value`. */
static void begin(enum op op, uint8_t value)
{
	if (op == WRITE || op == READ) {
		send_request(op, (uintptr_t)memory.at, memory.mr->rkey, LEN, value);
		return;
	}
	send_request(op, 0, 0, LEN, value);
	wait_for(op == SEND ? &shared->ready : &shared->done, shared->asked);
	posted_op = op;
	posted++;
}

/* Waits for the end of a transfer and returns its status. */
static int end(enum op op)
{
	if (op == WRITE || op == READ)
		return wait_for_reply();
	wait_for(&ended, posted);
	if (op == FETCH)
		return ended_status;
	shared->status = ended_status;
	shared->asked++;
	wait_for_reply();
	return ended_status;
}

/* Whether it writes to the memory, rather than reading from it. */
static int fills(enum op op)
{
	return op == WRITE || op == FETCH;
}

/* The average time of an undisturbed transfer, in seconds. */
static double usual_time(enum op op)
{
	double sum = 0;

	memset(shared->allowed, 1, 256);
	for (int i = 0; i < 50; i++) {
		double began = now();

		begin(op, 1);
		if (end(op) != IBV_WC_SUCCESS)
			die("%s: an undisturbed transfer fails", op_names[op]);
		sum += now() - began;
	}
	return sum / 50;
}

static void allow(int a, int b, int c, int d)
{
	memset(shared->allowed, 0, 256);
	shared->allowed[a] = shared->allowed[b] = shared->allowed[c] = shared->allowed[d] = 1;
}

static void expect_all(const uint8_t *at, uint8_t value, const char *what, enum op op, long n)
{
	uint8_t allowed[256] = { 0 };
	long count;

	allowed[value] = 1;
	if ((count = others(at, LEN, allowed)))
		wrong("round %ld, %s: %ld bytes of %s are not %d, the first byte is %d", n, op_names[op], count, what, value,
		      at[0]);
}

/* The mapping stays, and its pages are the file's again: later transfers must access these. */
static void after_dontneed(enum op op, uint8_t file, uint8_t value, long n)
{
	allow(file, file, file, file);
	begin(op, value);
	if (end(op) != IBV_WC_SUCCESS)
		wrong("round %ld, %s: the transfer after madvise failed", n, op_names[op]);
	if (fills(op))
		expect_all(memory.at, value, "the memory after madvise", op, n);
	else if (shared->wrong)
		wrong("round %ld, %s: %ld bytes from before madvise", n, op_names[op], shared->wrong);
}

/* One transfer, with the call in the middle of it. Returns the transfer's status. */
static int race_once(enum call call, enum op op, double delay, long n)
{
	uint8_t old = 1 + n % 60, fresh = 64 + n % 60, put = 128 + n % 60, later = 192 + n % 60;
	int prot = n % 2 ? PROT_READ : PROT_NONE;
	/* Contents from before the call may be read; contents written after the call has returned may not. */
	int readable = call == DONTNEED || (call == MPROTECT && prot == PROT_READ);
	/* The contents of the file under private pages, or of the replacement. */
	int file = call == DONTNEED ? 63 : call == REPLACE ? SPARE : old;
	int status;

	memset(memory.seen, call == DONTNEED ? file : old, LEN);
	if (call == DONTNEED)
		memset(memory.at, old, LEN);
	if (call == REPLACE)
		memset(memory.spare_seen, SPARE, LEN);
	/* 0 is the previous contents of the far side's buffer. */
	allow(0, old, file, readable ? fresh : old);
	begin(op, put);
	spin(delay);
	change(call, prot);
	memset(memory.seen, fresh, LEN);
	status = end(op);
	expect_all(memory.seen, fresh, "memory after the call", op, n);
	if (!fills(op) && shared->wrong)
		wrong("round %ld, %s: %ld bytes from after the call", n, op_names[op], shared->wrong);
	if (call == DONTNEED)
		after_dontneed(op, fresh, later, n);
	restore(call);
	return status;
}

static int is_fault(int status)
{
	/*
	 * The adapter is not notified of a raw call. Packets that were to leave from this memory are lost. If a NAK
	 * follows, the peer repeats requests that get no reply.
	 */
	if (opt.raw && status == IBV_WC_RETRY_EXC_ERR)
		return 1;
	return status == IBV_WC_REM_ACCESS_ERR || status == IBV_WC_REM_OP_ERR || status == IBV_WC_LOC_PROT_ERR ||
	       status == IBV_WC_LOC_ACCESS_ERR || status == IBV_WC_LOC_QP_OP_ERR;
}

static pthread_t begin_transfers(void)
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, transfer, (void *)(posted + 1)))
		die("no thread");
	return thread;
}

static void end_transfers(pthread_t thread)
{
	posted_op = QUIT;
	posted++;
	pthread_join(thread, NULL);
	ended = posted;
}

static void race_op(enum call call, enum op op, long rounds)
{
	int near = op == SEND || op == FETCH;
	pthread_t thread = near ? begin_transfers() : pthread_self();
	double scale = usual_time(op), began = now();
	unsigned seed = 7 + op;
	long well = 0, faults = 0, last = 0;

	for (long n = 0; n < rounds; n++) {
		int status = race_once(call, op, 2 * scale * rand_r(&seed) / RAND_MAX, n);

		if (status == IBV_WC_SUCCESS) {
			well++;
			/* The delay is adjusted so that about half of the calls come too late. */
			if (call != DONTNEED && call != REPLACE)
				scale /= 1.02;
			continue;
		}
		faults++;
		last = status;
		scale *= 1.02;
		/* Memory that stays mapped must not fail a transfer. */
		if (!is_fault(status) || call == DONTNEED || call == REPLACE)
			wrong("round %ld, %s: ends with %s", n, op_names[op], ibv_wc_status_str(status));
		reconnect();
	}
	if (near)
		end_transfers(thread);
	printf("  %s: %ld rounds of %.0f us, %ld ended well, %ld with %s\n", op_names[op], rounds,
	       (now() - began) / rounds * 1e6, well, faults, faults ? ibv_wc_status_str(last) : "an error");
	fflush(stdout);
	/* In a race both outcomes must occur. */
	if (rounds >= 1000 && call != DONTNEED && call != REPLACE && (well < rounds / 100 || faults < rounds / 100))
		wrong("%s: %ld ended well, %ld did not: one outcome is too rare", op_names[op], well, faults);
}

/* The adapter must count each call once: calls that change the memory, and calls that restore it by replacing a
 * mapping. */
static void check_count(enum call call, long rounds)
{
	long calls = call == MUNMAP || call == DONTNEED ? rounds : 2 * rounds;
	long counted = opt.raw ? -1 : counter("num_invalidations", calls);

	if (counted >= 0 && counted != calls)
		wrong("%ld invalidations in %ld rounds", counted, rounds);
}

static void race(const char *name)
{
	static const char *const names[] = { "munmap", "mremap", "mprotect", "dontneed", "replace" };
	enum call call = 0;

	while (strcmp(names[call], name))
		call++;
	make_memory(call == DONTNEED);
	for (enum op op = 0; op < OPS; op++)
		race_op(call, op, opt.rounds / OPS);
	check_count(call, opt.rounds / OPS * OPS);
	printf("%s%s: %ld rounds, %ld wrong\n", opt.raw ? "raw " : "", name, opt.rounds / OPS * OPS, failures);
	if (ibv_dereg_mr(memory.mr))
		wrong("ibv_dereg_mr");
}

#endif
