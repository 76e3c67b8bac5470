/* pthread_cancel of threads inside verbs, on any adapter.
 *
 *   cancel DEVICE GID COUNT
 *
 * First the program calls every verb while it watches the C library: a verb must not reach a cancellation point while
 * the thread can be cancelled, except where the verb waits for an event. Then COUNT threads are cancelled at random
 * points: each must end as cancelled and run its cleanup handler, and another thread's transfers must continue.
 *
 * Prints failures and a last line "N passed, M failed". */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <semaphore.h>
#include <stdatomic.h>
#include "threads_rig.h"
#include <sys/uio.h>
#include "cancel_points.h"
#include "check.h"

enum { DEPTH = 16, LONGEST_US = 300 };

static struct {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	union ibv_gid gid;
	char memory[4096];
} my;

/* A QP that is connected to itself, with its own CQ and channel. */
struct loop {
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
};

static void loop_open(struct loop *loop)
{
	VERB(loop->channel = ibv_create_comp_channel(my.context));
	VERB(loop->cq = ibv_create_cq(my.context, 4 * DEPTH, NULL, loop->channel, 0));
	if (!loop->channel || !loop->cq)
		die("no CQ: %s", strerror(errno));
	VERB(loop->qp = create_qp(my.pd, loop->cq, loop->cq, DEPTH));
	int error;
	VERB(error = connect_qp(loop->qp, loop->qp->qp_num, &my.gid));
	if (error)
		die("connect: %s", strerror(error));
}

static void loop_close(struct loop *loop)
{
	int error;

	VERB(error = ibv_destroy_qp(loop->qp));
	check(!error, "ibv_destroy_qp");
	VERB(error = ibv_destroy_cq(loop->cq));
	check(!error, "ibv_destroy_cq");
	VERB(error = ibv_destroy_comp_channel(loop->channel));
	check(!error, "ibv_destroy_comp_channel");
}

/* An RDMA WRITE from one half of the memory to the other: it has one completion and needs no receive. */
static int post_write(struct loop *loop)
{
	struct ibv_sge sge = { .addr = (uintptr_t)my.memory, .length = 64, .lkey = my.mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE }, *bad;
	int error;

	wr.wr.rdma.remote_addr = (uintptr_t)my.memory + 2048;
	wr.wr.rdma.rkey = my.mr->rkey;
	VERB(error = ibv_post_send(loop->qp, &wr, &bad));
	return error;
}

static int poll_once(struct loop *loop)
{
	struct ibv_wc wc[4];
	int n;

	VERB(n = ibv_poll_cq(loop->cq, 4, wc));
	for (int i = 0; i < n; i++)
		if (wc[i].status != IBV_WC_SUCCESS)
			die("a transfer failed: %s", ibv_wc_status_str(wc[i].status));
	if (n < 0)
		die("ibv_poll_cq: %d", n);
	return n;
}

/* Posts a WRITE if the send queue has room, and polls completions. */
static int transfer(struct loop *loop)
{
	int error = post_write(loop);

	if (error && error != ENOMEM)
		die("ibv_post_send: %s", strerror(error));
	return poll_once(loop);
}

static int take_event(struct loop *loop)
{
	struct ibv_cq *cq;
	void *context;
	int error;

	WAITING_VERB(error = ibv_get_cq_event(loop->channel, &cq, &context));
	if (!error)
		VERB(ibv_ack_cq_events(cq, 1));
	return error;
}

static void control_calls(void)
{
	struct ibv_device_attr device;
	struct ibv_port_attr port;
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;
	struct loop loop;
	struct ibv_mr *mr;
	int error;

	loop_open(&loop);
	VERB(error = ibv_query_device(my.context, &device) || ibv_query_port(my.context, 1, &port) ||
		     ibv_query_qp(loop.qp, &attr, IBV_QP_STATE, &init) || ibv_resize_cq(loop.cq, 2 * DEPTH));
	check(!error, "queries");
	VERB(mr = ibv_reg_mr(my.pd, my.memory, sizeof(my.memory), IBV_ACCESS_LOCAL_WRITE));
	check(mr != NULL, "ibv_reg_mr");
	if (mr)
		VERB(ibv_dereg_mr(mr));
	loop_close(&loop);
}

/* Calls every verb once, and the hot path until it has reached the work that it does only now and then. */
static void audit(void)
{
	struct loop loop;
	double end = now() + 20;
	int done = 0, error;

	loop_open(&loop);
	VERB(error = ibv_req_notify_cq(loop.cq, 0));
	check(!error && !post_write(&loop) && !take_event(&loop), "an event");
	/* Long enough for the adapter to recognise a poller, and for its thread to get the sockets back. */
	while (done < 2000 && now() < end)
		done += transfer(&loop);
	check(done >= 2000, "%d transfers", done);
	VERB(ibv_req_notify_cq(loop.cq, 0));
	loop_close(&loop);
	control_calls();
	check(!violations, "%d calls of cancellation points while the thread could be cancelled, the first: %s", violations,
	      violation);
}

/* The kind of call in which a thread is cancelled. */
enum { WAITS_FOR_CQ, WAITS_FOR_ASYNC, POLLS, POSTS, TAKES_EVENTS, CONTROLS, KINDS };

static const char *const names[KINDS] = { "in ibv_get_cq_event", "in ibv_get_async_event", "that polls", "that posts",
					  "that takes events", "in control calls" };
static struct loop loops[KINDS];
static sem_t started;
static atomic_int cleaned;

static void clean_up(void *unused)
{
	(void)unused;
	in_verb = 0;
	atomic_fetch_add(&cleaned, 1);
}

static void run_once(int kind)
{
	struct loop *loop = &loops[kind];
	struct ibv_async_event event;

	switch (kind) {
	case WAITS_FOR_CQ: take_event(loop); break;
	case WAITS_FOR_ASYNC: WAITING_VERB(ibv_get_async_event(my.context, &event)); break;
	case POLLS: poll_once(loop); break;
	case POSTS: transfer(loop); break;
	case TAKES_EVENTS:
		VERB(ibv_req_notify_cq(loop->cq, 0));
		transfer(loop);
		if (!poll_once(loop))
			take_event(loop);
		break;
	default: control_calls();
	}
}

static void *victim(void *kind)
{
	pthread_cleanup_push(clean_up, NULL);
	sem_post(&started);
	for (;;) {
		run_once((int)(intptr_t)kind);
		pthread_testcancel();
	}
	pthread_cleanup_pop(0);
	return NULL;
}

static atomic_int stop;
static atomic_long transfers;

static void *others(void *loop)
{
	while (!atomic_load(&stop)) {
		atomic_fetch_add(&transfers, transfer(loop));
		/* With few cores the other threads need this one. */
		sched_yield();
	}
	return NULL;
}

/* Waits until there is a further transfer. */
static int go_on(long before)
{
	double end = now() + 20;

	while (atomic_load(&transfers) <= before && now() < end)
		sched_yield();
	return atomic_load(&transfers) > before;
}

static void cancel_one(int kind, uint64_t *rng)
{
	int before = atomic_load(&cleaned), error;
	long done = atomic_load(&transfers);
	pthread_t thread;
	void *result;

	if ((error = pthread_create(&thread, NULL, victim, (void *)(intptr_t)kind)))
		die("pthread_create: %s", strerror(error));
	while (sem_wait(&started))
		;
	usleep(draw(rng, LONGEST_US));
	pthread_cancel(thread);
	pthread_join(thread, &result);
	if (result != PTHREAD_CANCELED || atomic_load(&cleaned) != before + 1)
		check(0, "a thread %s: not cancelled, or not cleaned up", names[kind]);
	else if (!go_on(done))
		check(0, "after a cancelled thread %s: transfers have stopped", names[kind]);
	else
		passed++;
}

int main(int argc, char **argv)
{
	struct loop own;
	pthread_t thread;

	if (argc != 4)
		die("usage: cancel DEVICE GID COUNT");
	opt.device = argv[1];
	opt.gid = atoi(argv[2]);
	opt.count = atol(argv[3]);
	opt.seed = time(NULL) ^ (uint64_t)getpid() << 32;
	printf("seed %" PRIu64 "\n", opt.seed);
	fflush(stdout);
	watch(110);
	VERB(my.context = open_device());
	VERB(my.pd = ibv_alloc_pd(my.context));
	VERB(my.mr = ibv_reg_mr(my.pd, my.memory, sizeof(my.memory), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
	if (!my.pd || !my.mr || ibv_query_gid(my.context, 1, opt.gid, &my.gid))
		die("no PD, MR or GID: %s", strerror(errno));
	audit();

	for (int kind = 0; kind < KINDS; kind++)
		loop_open(&loops[kind]);
	loop_open(&own);
	pthread_create(&thread, NULL, others, &own);
	uint64_t rng = opt.seed;
	sem_init(&started, 0, 0);
	for (long i = 0; i < opt.count; i++)
		cancel_one(i % KINDS, &rng);
	atomic_store(&stop, 1);
	pthread_join(thread, NULL);
	/* The objects that cancelled threads used must still work. */
	for (int kind = 0; kind < KINDS; kind++) {
		double end = now() + 20;
		int done = 0;

		while (done < 2 * DEPTH && now() < end)
			done += transfer(&loops[kind]);
		check(done >= 2 * DEPTH, "the QP of a cancelled thread %s no longer works", names[kind]);
	}
	check(!violations, "%d calls of cancellation points while the thread could be cancelled, the first: %s", violations,
	      violation);
	printf("%d passed, %d failed\n", passed, failed);
	return failed != 0;
}
