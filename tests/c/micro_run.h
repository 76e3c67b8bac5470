/* The measurement: posts at intervals, takes completions, runs workarounds (thesis, figure 5.1 and section 7.1). */
#ifndef MICRO_RUN_H
#define MICRO_RUN_H

#include "micro_rig.h"
#include <sys/prctl.h>
#include <sys/resource.h>

/* A wr_id is an operation's number, or a number with one of these bits. */
#define DUMMY (1ull << 40)
#define WARM (1ull << 41)
#define RECEIVE (1ull << 42)
/* An operation that is issued again, with its number. */
#define AGAIN (1ull << 43)

#define OPEN (-1.0)
#define FAILED (-2.0)

static struct run {
	/* Seconds since the first post, or OPEN, or FAILED. */
	double *posted, *completed, *again;
	double start, end, deadline, next_dummy, next_again;
	/* CLOCK_REALTIME of the first post, ns: captures use this clock. */
	uint64_t wall;
	uint32_t begun, ended, failed, dummies, repeats;
	uint64_t total;
	const char *status;
	int late;
	double cpu, far_cpu;
	uint64_t checked, wrong, far_checked, far_wrong;
	/* How much later than requested usleep returned, seconds. */
	double *oversleep;
	uint32_t sleeps, room;
} run;

static inline double cpu_now(void)
{
	struct rusage used;

	getrusage(RUSAGE_SELF, &used);
	return used.ru_utime.tv_sec + used.ru_stime.tv_sec + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6;
}

static inline void nap(double seconds)
{
	double start = now(), late;

	usleep((useconds_t)(seconds * 1e6 + 0.5));
	late = now() - start - seconds;
	if (run.sleeps < run.room)
		run.oversleep[run.sleeps++] = late > 0 ? late : 0;
}

static inline void completion(const struct ibv_wc *wc)
{
	double at = now() - run.start;
	uint32_t i = (uint32_t)wc->wr_id;

	if (wc->wr_id & RECEIVE)
		return;
	run.total--;
	if (wc->wr_id & DUMMY)
		micro.outstanding[i]--;
	else
		micro.outstanding[wc->wr_id & AGAIN ? spare_qp() : i % job.num_qps]--;
	if (wc->status != IBV_WC_SUCCESS && !run.status)
		run.status = ibv_wc_status_str(wc->status);
	if (wc->wr_id & DUMMY || run.completed[i] != OPEN)
		return;
	if (wc->status == IBV_WC_SUCCESS)
		run.completed[i] = at;
	else if (!(wc->wr_id & AGAIN))
		run.completed[i] = FAILED;
	if (run.completed[i] == OPEN)
		return;
	run.failed += run.completed[i] == FAILED;
	run.ended++;
	run.end = at;
}

/* Takes all completions. Returns 0 after the deadline. */
static inline int drain(void)
{
	struct ibv_wc wc[64];
	int n;

	do {
		n = ibv_poll_cq(micro.cq, 64, wc);
		if (n < 0)
			die("ibv_poll_cq: %d", n);
		for (int i = 0; i < n; i++)
			completion(&wc[i]);
	} while (n == 64);
	run.late = run.late || now() > run.deadline;
	return !run.late;
}

/* Posts a one-byte operation of the kind and at the address of each QP's first one, on QPs with outstanding
 * operations. */
static inline void dummies(void)
{
	for (uint32_t qp = 0; qp < job.num_qps && qp < run.begun; qp++)
		if (micro.outstanding[qp] && micro.outstanding[qp] < micro.depth && run.total < (uint64_t)micro.cqe) {
			post(qp, DUMMY | qp, kind_of(qp), offset_of(qp), 1);
			run.total++;
			run.dummies++;
		}
}

/* Posts every operation that has been open for `again_after` once more, on the spare QP. */
static inline void repeats(double at)
{
	for (uint32_t i = 0; i < run.begun; i++)
		if (run.completed[i] == OPEN && at - run.again[i] >= job.again_after * 1e-9 &&
		    micro.outstanding[spare_qp()] < micro.depth && run.total < (uint64_t)micro.cqe) {
			post(spare_qp(), AGAIN | i, kind_of(i), offset_of(i), job.size);
			run.again[i] = at;
			run.total++;
			run.repeats++;
		}
}

static inline int watch(void)
{
	double at;

	if (!drain())
		return 0;
	at = now() - run.start;
	if (job.dummy_every && at >= run.next_dummy) {
		dummies();
		run.next_dummy = at + job.dummy_every * 1e-9;
	}
	if (job.again_after && at >= run.next_again) {
		repeats(at);
		run.next_again = at + job.again_after * 0.25e-9;
	}
	return 1;
}

/* Waits for the interval after a post with usleep, and runs a workaround's timer meanwhile. */
static inline int wait_interval(double until)
{
	double left, to_timer = job.dummy_every ? job.dummy_every * 1e-9 : job.again_after * 0.25e-9;

	while ((left = until - (now() - run.start)) > 0) {
		nap(to_timer && to_timer < left ? to_timer : left);
		if (!watch())
			return 0;
	}
	return 1;
}

/* Waits for the completion of operation i, and for the interval after it. */
static inline int wait_turn(uint32_t i)
{
	while (run.completed[i] == OPEN)
		if (!watch())
			return 0;
	while (run.completed[i] != FAILED && now() - run.start < run.completed[i] + job.interval * 1e-9)
		if (!watch())
			return 0;
	return 1;
}

static inline void measure(void)
{
	struct timespec wall;
	double before;

	for (uint32_t i = 0; i < job.num_ops; i++)
		run.completed[i] = OPEN;
	before = cpu_now();
	clock_gettime(CLOCK_REALTIME, &wall);
	run.wall = wall.tv_sec * 1000000000ull + wall.tv_nsec;
	run.start = now();
	run.next_dummy = job.dummy_every * 1e-9;
	run.next_again = job.again_after * 1e-9;
	for (uint32_t i = 0; i < job.num_ops && !run.late; i++) {
		uint32_t qp = i % job.num_qps;

		while ((micro.outstanding[qp] == micro.depth || run.total >= (uint64_t)micro.cqe) && watch())
			;
		if (run.late)
			break;
		run.posted[i] = run.again[i] = now() - run.start;
		post(qp, i, kind_of(i), offset_of(i), job.size);
		run.total++;
		run.begun++;
		if (i + 1 == job.num_ops)
			break;
		if (job.in_turn ? !wait_turn(i) : job.interval && !wait_interval(run.posted[i] + job.interval * 1e-9))
			break;
	}
	while (run.ended < run.begun && watch())
		;
	run.cpu = cpu_now() - before;
	if (run.late && !run.status)
		run.status = "not done in time";
}

/* Measures how exactly this machine sleeps: with some of the run's own intervals, or with milliseconds if there are
 * none. */
static inline void measure_sleep(void)
{
	double interval = job.interval ? job.interval * 1e-9 : 1e-3, end = now() + 0.05;

	run.room = 64 + job.num_ops;
	run.oversleep = calloc(run.room, sizeof(double));
	/* Without this the kernel adds up to 50 us to wake several threads at once. */
	prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
	for (int i = 0; i < 50 && (i < 2 || now() < end); i++)
		nap(interval);
}

/* READs and WRITEs one byte of each page, one after another, except for the first operation's pages. */
static inline void touch(void)
{
	uint32_t qp = micro.all_qps - 1;
	double end = now() + opt.seconds;

	for (uint64_t at = (job.size + PAGE - 1) / PAGE * PAGE; client && at < all_bytes(); at += PAGE)
		for (uint32_t kind = READ; kind <= WRITE; kind++) {
			struct ibv_wc wc;
			int n;

			post(qp, WARM, kind, at, 1);
			while (!(n = ibv_poll_cq(micro.cq, 1, &wc)))
				if (now() > end)
					die("--touched: no completion within %d s", opt.seconds);
			if (n < 0 || wc.status != IBV_WC_SUCCESS)
				die("--touched: %s", n < 0 ? "ibv_poll_cq failed" : ibv_wc_status_str(wc.status));
			micro.outstanding[qp]--;
		}
}

/* Fills the source with a pattern per operation. The pages of the destination stay untouched. */
static inline void fill(void)
{
	for (uint32_t i = 0; i < job.num_ops; i++)
		if (client == (kind_of(i) != READ))
			pattern(micro.at + offset_of(i), job.size, i);
}

/* Compares received data. SENDs that a workaround repeats arrive at other addresses and are not compared. */
static inline void verify(void)
{
	uint8_t *expected = malloc(job.size + 8);

	for (uint32_t i = 0; expected && i < job.num_ops; i++) {
		if (client == (kind_of(i) != READ) || (kind_of(i) == SEND && (job.dummy_every || job.again_after)))
			continue;
		if (client && !(run.completed[i] >= 0))
			continue;
		pattern(expected, job.size, i);
		for (uint32_t b = 0; b < job.size; b++)
			run.wrong += expected[b] != micro.at[offset_of(i) + b];
		run.checked += job.size;
	}
	free(expected);
}

/* Posts the server's receives: those of the operations, then some for workarounds. */
static inline void receives(void)
{
	uint32_t *given = calloc(micro.all_qps, sizeof(*given)), sends = 0;
	struct ibv_recv_wr *bad;

	for (uint32_t i = 0; i < job.num_ops; i++)
		sends += kind_of(i) == SEND;
	for (uint32_t i = 0; given && sends && i < job.num_ops + micro.all_qps * 1024; i++) {
		uint32_t spare = i >= job.num_ops, n = spare ? (i - job.num_ops) % micro.all_qps : i % job.num_qps;
		uint64_t offset = spare ? 0 : offset_of(i);
		struct ibv_sge data = { (uintptr_t)micro.at + offset, job.size, micro.mr->lkey };
		struct ibv_recv_wr wr = { .wr_id = RECEIVE, .sg_list = &data, .num_sge = 1 };

		if (spare ? !(job.dummy_every || job.again_after) || given[n] == micro.depth : kind_of(i) != SEND)
			continue;
		if (given[n]++ == micro.depth || ibv_post_recv(micro.qps[n], &wr, &bad))
			die("no room for receives of %u SENDs in %u QPs of %u each", sends, job.num_qps, micro.depth);
	}
	free(given);
}

#endif
