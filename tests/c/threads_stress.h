/* Every thread makes random calls on random objects. QPs are shared: a lock per QP pair only keeps their destruction
 * and reconnection apart from other calls, as the verbs require. */
#ifndef THREADS_STRESS_H
#define THREADS_STRESS_H

#include <stdatomic.h>
#include "threads_rig.h"

enum { CONTEXTS = 3, CQS = 6, PAIRS = 12, DEPTH = 32, SLOTS = 4 * DEPTH, AREA = 1 << 16, CQE = 8192 };

/* Two QPs connected to each other, and the outstanding work requests of both. */
struct pair {
	pthread_rwlock_t lock;
	struct ibv_qp *qps[2];
	struct ibv_mr *mr;
	uint8_t *area;
	/* A thread may still hold completions of an earlier generation. */
	_Atomic uint32_t generation;
	_Atomic uint8_t slots[SLOTS];
};

/* A CQ, with or without a channel; all threads poll it. */
struct queue {
	struct ibv_context *context;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
};

static struct {
	struct ibv_context *contexts[CONTEXTS];
	struct ibv_pd *pds[CONTEXTS];
	struct queue queues[CQS];
	struct pair pairs[PAIRS];
	union ibv_gid gid;
	atomic_int stop;
	_Atomic uint64_t completions, flushed, posts, events, lives, registrations;
} all;

static uint64_t wr_id(const struct pair *pair, uint32_t generation, int slot)
{
	return (uint64_t)(pair - all.pairs) << 48 | (uint64_t)generation << 16 | slot;
}

/* A free slot for a work request, or -1. */
static int take_slot(struct pair *pair, uint64_t *rng)
{
	for (int tries = 0; tries < 16; tries++) {
		int slot = draw(rng, SLOTS);
		uint8_t expected = 0;

		if (atomic_compare_exchange_strong(&pair->slots[slot], &expected, 1))
			return slot;
	}
	return -1;
}

static void completed(const struct ibv_wc *wc)
{
	struct pair *pair = &all.pairs[wc->wr_id >> 48];

	if (wc->wr_id >> 48 >= PAIRS)
		die("a completion of an unknown QP: %" PRIx64, wc->wr_id);
	atomic_fetch_add(&all.completions, 1);
	if (wc->status != IBV_WC_SUCCESS)
		atomic_fetch_add(&all.flushed, 1);
	pthread_rwlock_rdlock(&pair->lock);
	if (pair->generation == (uint32_t)(wc->wr_id >> 16 & 0xffffffff) &&
	    atomic_exchange(&pair->slots[wc->wr_id & 0xffff], 0) != 1)
		die("a second completion of %" PRIx64, wc->wr_id);
	pthread_rwlock_unlock(&pair->lock);
}

static void drain(struct queue *queue, uint64_t *rng)
{
	struct ibv_wc wcs[16];
	int n, rounds = 1 + draw(rng, 4);

	while (rounds-- > 0 && (n = ibv_poll_cq(queue->cq, 1 + draw(rng, 16), wcs)) != 0) {
		if (n < 0)
			die("ibv_poll_cq: %d", n);
		for (int i = 0; i < n; i++)
			completed(&wcs[i]);
	}
}

static void sleep_for_event(struct queue *queue, uint64_t *rng)
{
	struct pollfd fd = { .fd = queue->channel ? queue->channel->fd : -1, .events = POLLIN };
	struct ibv_cq *cq;
	void *context;

	if (!queue->channel)
		return;
	if (ibv_req_notify_cq(queue->cq, draw(rng, 4) == 0))
		die("ibv_req_notify_cq");
	drain(queue, rng);
	/* The descriptor does not block, because another thread may take the event. */
	if (poll(&fd, 1, draw(rng, 20)) == 1 && !ibv_get_cq_event(queue->channel, &cq, &context)) {
		ibv_ack_cq_events(cq, 1);
		atomic_fetch_add(&all.events, 1);
	}
	drain(queue, rng);
}

static void post(struct pair *pair, struct ibv_mr *source, uint64_t *rng)
{
	static const enum ibv_wr_opcode opcodes[] = { IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ,
						      IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_RDMA_WRITE_WITH_IMM };
	int slot = take_slot(pair, rng), side = draw(rng, 2), error;
	struct ibv_sge sge = { (uintptr_t)source->addr, 1 + draw(rng, source->length), source->lkey };
	struct ibv_send_wr send = { .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED }, *bad_send;
	struct ibv_recv_wr recv = { .sg_list = &sge, .num_sge = 1 }, *bad_recv;

	if (slot < 0)
		return;
	send.wr_id = recv.wr_id = wr_id(pair, pair->generation, slot);
	send.opcode = opcodes[draw(rng, 6)];
	if (send.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		sge.length = 8;
		send.wr.atomic.remote_addr = (uintptr_t)pair->area;
		send.wr.atomic.rkey = pair->mr->rkey;
		send.wr.atomic.compare_add = 1;
	} else {
		send.wr.rdma.remote_addr = (uintptr_t)pair->area;
		send.wr.rdma.rkey = pair->mr->rkey;
	}
	if (draw(rng, 3) == 0) {
		sge = (struct ibv_sge){ (uintptr_t)pair->area, AREA, pair->mr->lkey };
		error = ibv_post_recv(pair->qps[side], &recv, &bad_recv);
	} else {
		error = ibv_post_send(pair->qps[side], &send, &bad_send);
	}
	if (error)
		atomic_store(&pair->slots[slot], 0);
	else
		atomic_fetch_add(&all.posts, 1);
	if (error && error != ENOMEM)
		die("posting: %s", strerror(error));
}

static void connect_pair(struct pair *pair)
{
	for (int i = 0; i < 2; i++) {
		int error = connect_qp(pair->qps[i], pair->qps[!i]->qp_num, &all.gid);

		if (error)
			die("connecting: %s", strerror(error));
	}
}

static void make_pair(struct pair *pair, uint64_t *rng)
{
	int context = draw(rng, CONTEXTS);

	for (int i = 0; i < 2; i++) {
		struct ibv_cq *cqs[2];

		/* CQs of the same context. */
		for (int k = 0; k < 2; k++) {
			int queue = draw(rng, CQS / CONTEXTS) * CONTEXTS + context;

			cqs[k] = all.queues[queue].cq;
		}
		pair->qps[i] = create_qp(all.pds[context], cqs[0], cqs[1], DEPTH);
	}
	pair->mr = ibv_reg_mr(pair->qps[0]->pd, pair->area, AREA,
			      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
				      IBV_ACCESS_REMOTE_ATOMIC);
	if (!pair->mr)
		die("ibv_reg_mr: %s", strerror(errno));
	connect_pair(pair);
	atomic_fetch_add(&all.lives, 1);
}

/* Starts a new generation: work requests of earlier ones do not complete any more. */
static void next_generation(struct pair *pair)
{
	pair->generation++;
	for (int i = 0; i < SLOTS; i++)
		pair->slots[i] = 0;
}

static void end_pair(struct pair *pair)
{
	if (ibv_destroy_qp(pair->qps[0]) || ibv_destroy_qp(pair->qps[1]) || ibv_dereg_mr(pair->mr))
		die("cannot destroy: %s", strerror(errno));
	next_generation(pair);
}

/* Destroys and recreates a pair, or moves it through RESET. The caller has the pair's write lock. */
static void renew(struct pair *pair, uint64_t *rng)
{
	if (draw(rng, 2)) {
		end_pair(pair);
		make_pair(pair, rng);
	} else {
		if (to_state(pair->qps[0], IBV_QPS_RESET) || to_state(pair->qps[1], IBV_QPS_RESET))
			die("to RESET");
		next_generation(pair);
		connect_pair(pair);
	}
}

static void use_pair(uint64_t *rng, struct ibv_mr *mr)
{
	struct pair *pair = &all.pairs[draw(rng, PAIRS)];
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	int what = draw(rng, 4000), posts = 1 + draw(rng, 8), failed = 0;

	pthread_rwlock_rdlock(&pair->lock);
	if (what == 0 && to_state(pair->qps[draw(rng, 2)], IBV_QPS_ERR))
		die("to ERR");
	if (what < 200) {
		if (ibv_query_qp(pair->qps[draw(rng, 2)], &attr, IBV_QP_STATE, &init))
			die("ibv_query_qp");
		failed = attr.qp_state == IBV_QPS_ERR;
	}
	if (what < 20) {
		/* An MR that is registered for one post, and deregistered before it is known whether the post was
		 * sent. */
		struct ibv_mr *brief = ibv_reg_mr(pair->qps[0]->pd, mr->addr, 4096, IBV_ACCESS_LOCAL_WRITE);

		if (!brief)
			die("ibv_reg_mr: %s", strerror(errno));
		post(pair, brief, rng);
		if (ibv_dereg_mr(brief))
			die("ibv_dereg_mr");
		atomic_fetch_add(&all.registrations, 1);
	}
	while (posts-- > 0)
		post(pair, draw(rng, 10000) ? pair->mr : mr, rng);
	pthread_rwlock_unlock(&pair->lock);
	/* Now and then also a working pair. */
	if ((failed || what == 1) && !pthread_rwlock_trywrlock(&pair->lock)) {
		renew(pair, rng);
		pthread_rwlock_unlock(&pair->lock);
	}
}

/* Opens and closes a context with its objects while other threads work. */
static void open_and_close(void)
{
	struct ibv_context *context = open_device();
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, channel, 0);
	struct ibv_qp *qp = create_qp(pd, cq, cq, 4);

	if (connect_qp(qp, qp->qp_num, &all.gid) || ibv_destroy_qp(qp) || ibv_destroy_cq(cq) ||
	    ibv_destroy_comp_channel(channel) || ibv_dealloc_pd(pd) || ibv_close_device(context))
		die("a short-lived context: %s", strerror(errno));
}

static void *stress_thread(void *argument)
{
	uint64_t number = (uintptr_t)argument, rng = opt.seed ^ number << 40;
	uint8_t *own = aligned_alloc(4096, 4096);
	struct ibv_mr *mr = ibv_reg_mr(all.pds[number % CONTEXTS], own, 4096, IBV_ACCESS_LOCAL_WRITE);

	if (!mr)
		die("ibv_reg_mr: %s", strerror(errno));
	while (!all.stop) {
		struct queue *queue = &all.queues[draw(&rng, CQS)];
		int what = draw(&rng, 1000);

		if (what == 0)
			open_and_close();
		else if (what == 1 && ibv_resize_cq(queue->cq, CQE + draw(&rng, CQE)))
			die("ibv_resize_cq");
		else if (what < 40)
			sleep_for_event(queue, &rng);
		else if (what < 500)
			drain(queue, &rng);
		else
			use_pair(&rng, mr);
	}
	if (ibv_dereg_mr(mr))
		die("ibv_dereg_mr");
	free(own);
	return NULL;
}

static void stress_open(uint64_t *rng)
{
	for (int i = 0; i < CONTEXTS; i++) {
		all.contexts[i] = open_device();
		if (!(all.pds[i] = ibv_alloc_pd(all.contexts[i])))
			die("ibv_alloc_pd");
	}
	if (ibv_query_gid(all.contexts[0], 1, opt.gid, &all.gid))
		die("no GID %d", opt.gid);
	for (int i = 0; i < CQS; i++) {
		struct queue *queue = &all.queues[i];

		queue->context = all.contexts[i % CONTEXTS];
		if (i >= CONTEXTS) {
			if (!(queue->channel = ibv_create_comp_channel(queue->context)))
				die("ibv_create_comp_channel: %s", strerror(errno));
			fcntl(queue->channel->fd, F_SETFL, O_NONBLOCK);
		}
		if (!(queue->cq = ibv_create_cq(queue->context, CQE, queue, queue->channel, 0)))
			die("ibv_create_cq: %s", strerror(errno));
	}
	for (int i = 0; i < PAIRS; i++) {
		struct pair *pair = &all.pairs[i];

		pthread_rwlock_init(&pair->lock, NULL);
		pair->area = aligned_alloc(4096, AREA);
		memset(pair->area, 0, AREA);
		make_pair(pair, rng);
	}
}

/* Number of work requests that have not completed. */
static int outstanding(void)
{
	int count = 0;

	for (int i = 0; i < PAIRS; i++)
		for (int k = 0; k < SLOTS; k++)
			count += all.pairs[i].slots[k];
	return count;
}

static void stress_close(uint64_t *rng)
{
	double end = now() + 10;

	for (int i = 0; i < PAIRS; i++)
		if (to_state(all.pairs[i].qps[0], IBV_QPS_ERR) || to_state(all.pairs[i].qps[1], IBV_QPS_ERR))
			die("to ERR");
	while (outstanding() && now() < end)
		for (int i = 0; i < CQS; i++)
			drain(&all.queues[i], rng);
	if (outstanding())
		die("%d work requests did not complete", outstanding());
	for (int i = 0; i < PAIRS; i++) {
		end_pair(&all.pairs[i]);
		free(all.pairs[i].area);
	}
	for (int i = 0; i < CQS; i++)
		if (ibv_destroy_cq(all.queues[i].cq) ||
		    (all.queues[i].channel && ibv_destroy_comp_channel(all.queues[i].channel)))
			die("cannot destroy a CQ: %s", strerror(errno));
	for (int i = 0; i < CONTEXTS; i++)
		if (ibv_dealloc_pd(all.pds[i]) || ibv_close_device(all.contexts[i]))
			die("cannot close: %s", strerror(errno));
}

static int stress(void)
{
	pthread_t threads[MAX_THREADS];
	uint64_t rng = opt.seed;

	watch(opt.seconds + 60);
	stress_open(&rng);
	for (uintptr_t i = 0; i < (uintptr_t)opt.threads; i++)
		pthread_create(&threads[i], NULL, stress_thread, (void *)(i + 1));
	sleep(opt.seconds);
	all.stop = 1;
	for (int i = 0; i < opt.threads; i++)
		pthread_join(threads[i], NULL);
	stress_close(&rng);
	printf("%d threads: %" PRIu64 " posts, %" PRIu64 " completions (%" PRIu64 " not successful), %" PRIu64 " events, %" PRIu64
	       " QP pairs, %" PRIu64 " brief MRs\n",
	       opt.threads, all.posts, all.completions, all.flushed, all.events, all.lives, all.registrations);
	return 0;
}

#endif
