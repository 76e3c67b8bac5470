/* Event-driven ping-pong between two processes, which detects a missing event. */
#ifndef THREADS_PINGPONG_H
#define THREADS_PINGPONG_H

#include "threads_rig.h"

enum { RECEIVES = 4, PATIENCE_MS = 20000 };

/* One thread's end of a connection. */
struct end {
	pthread_t thread;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	uint64_t *buffer;
	uint64_t rng;
	long rounds, slept;
};

static struct {
	struct ibv_context *context;
	struct ibv_pd *pd;
	union ibv_gid gid;
	int client, side;
	struct end ends[MAX_THREADS];
} table;

/* A random pause of the program: none, spinning, yielding, or sleeping for up to about two of the adapter's
 * intervals. */
static void random_pause(uint64_t *rng)
{
	double until;

	switch (draw(rng, 64)) {
	case 0:
		usleep(draw(rng, 1200));
		break;
	case 1 ... 8:
		until = now() + draw(rng, 60) * 1e-6;
		while (now() < until)
			;
		break;
	case 9 ... 12:
		sched_yield();
		break;
	}
}

static void pp_receive(struct end *end, uint64_t slot)
{
	struct ibv_sge sge = { (uintptr_t)&end->buffer[slot], 8, end->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = slot, .sg_list = &sge, .num_sge = 1 }, *bad;
	int error = ibv_post_recv(end->qp, &wr, &bad);

	if (error)
		die("ibv_post_recv: %s", strerror(error));
}

static void pp_send(struct end *end, uint64_t round)
{
	struct ibv_sge sge = { (uintptr_t)&round, 8, 0 };
	struct ibv_send_wr wr = { .wr_id = RECEIVES, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
	int error;

	wr.send_flags = IBV_SEND_INLINE;
	if ((error = ibv_post_send(end->qp, &wr, &bad)))
		die("ibv_post_send: %s", strerror(error));
}

/* Polls a few times: usually twice, sometimes often enough for the adapter to recognise a polling program. */
static int pp_poll(struct end *end, struct ibv_wc *wc)
{
	int tries = draw(&end->rng, 8) ? 1 : draw(&end->rng, 80);
	int n = 0;

	while (tries-- >= 0 && n == 0)
		n = ibv_poll_cq(end->cq, 1, wc);
	if (n < 0)
		die("ibv_poll_cq: %d", n);
	return n;
}

/* The next completion; sleeps until its event comes. */
static struct ibv_wc pp_next(struct end *end, long round)
{
	struct pollfd fd = { .fd = end->channel->fd, .events = POLLIN };
	struct ibv_wc wc;
	struct ibv_cq *cq;
	void *context;

	if (pp_poll(end, &wc))
		return wc;
	for (;;) {
		if (ibv_req_notify_cq(end->cq, 0))
			die("ibv_req_notify_cq");
		if (ibv_poll_cq(end->cq, 1, &wc) == 1)
			return wc;
		end->slept++;
		if (poll(&fd, 1, PATIENCE_MS) != 1)
			die("%s, round %ld: no event within %d ms; %s", table.client ? "client" : "server", round, PATIENCE_MS,
			    ibv_poll_cq(end->cq, 1, &wc) ? "completion present: a lost wake-up" : "and no completion");
		if (ibv_get_cq_event(end->channel, &cq, &context))
			die("ibv_get_cq_event: %s", strerror(errno));
		ibv_ack_cq_events(cq, 1);
		if (pp_poll(end, &wc))
			return wc;
	}
}

/* Rounds of one thread: the client begins each. */
static void *pp_play(void *argument)
{
	struct end *end = argument;
	long sent = 0, received = 0, done = 0;

	if (table.client)
		pp_send(end, sent++);
	while (done < end->rounds || received < end->rounds) {
		struct ibv_wc wc = pp_next(end, received);

		if (wc.status != IBV_WC_SUCCESS)
			die("round %ld: %s", received, ibv_wc_status_str(wc.status));
		if (wc.wr_id == RECEIVES) {
			done++;
			continue;
		}
		if (end->buffer[wc.wr_id] != (uint64_t)received)
			die("round %ld: message %" PRIu64, received, end->buffer[wc.wr_id]);
		received++;
		pp_receive(end, wc.wr_id);
		if (sent < end->rounds) {
			random_pause(&end->rng);
			pp_send(end, sent++);
		}
	}
	return NULL;
}

static void pp_exchange(const void *mine, void *theirs, size_t len)
{
	if (write(table.side, mine, len) != (ssize_t)len || recv(table.side, theirs, len, MSG_WAITALL) != (ssize_t)len)
		die("the other process has ended");
}

static void pp_open(struct end *end, int number)
{
	struct { uint32_t qpn; union ibv_gid gid; } mine, theirs;
	int error;

	end->rng = opt.seed ^ (uint64_t)(2 * number + table.client) << 48;
	end->rounds = opt.count / opt.threads;
	end->channel = ibv_create_comp_channel(table.context);
	end->cq = end->channel ? ibv_create_cq(table.context, 64, end, end->channel, 0) : NULL;
	end->buffer = calloc(RECEIVES, 8);
	end->mr = ibv_reg_mr(table.pd, end->buffer, RECEIVES * 8, IBV_ACCESS_LOCAL_WRITE);
	if (!end->cq || !end->mr)
		die("cannot create a CQ or an MR: %s", strerror(errno));
	end->qp = create_qp(table.pd, end->cq, end->cq, 2 * RECEIVES);
	memset(&mine, 0, sizeof(mine));
	mine.qpn = end->qp->qp_num;
	mine.gid = table.gid;
	pp_exchange(&mine, &theirs, sizeof(mine));
	if ((error = connect_qp(end->qp, theirs.qpn, &theirs.gid)))
		die("ibv_modify_qp: %s", strerror(error));
	for (uint64_t slot = 0; slot < RECEIVES; slot++)
		pp_receive(end, slot);
}

static int pingpong(void)
{
	int sides[2], status = 0;
	long slept = 0;
	double begin;
	char word = 0;
	pid_t child;

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, sides) || (child = fork()) < 0)
		die("cannot create a second process: %s", strerror(errno));
	table.client = child == 0;
	table.side = sides[table.client];
	close(sides[!table.client]);
	watch(300 + opt.count / 1000);
	table.context = open_device();
	table.pd = ibv_alloc_pd(table.context);
	if (!table.pd || ibv_query_gid(table.context, 1, opt.gid, &table.gid))
		die("cannot use the device: %s", strerror(errno));
	for (int i = 0; i < opt.threads; i++)
		pp_open(&table.ends[i], i);
	pp_exchange(&word, &word, 1);
	begin = now();
	for (int i = 0; i < opt.threads; i++)
		pthread_create(&table.ends[i].thread, NULL, pp_play, &table.ends[i]);
	for (int i = 0; i < opt.threads; i++) {
		pthread_join(table.ends[i].thread, NULL);
		slept += table.ends[i].slept;
	}
	/* The other side may still wait for ACKs. */
	pp_exchange(&word, &word, 1);
	printf("%s: %ld rounds, asleep %ld times, %.1f s\n", table.client ? "client" : "server",
	       opt.count / opt.threads * opt.threads, slept, now() - begin);
	for (int i = 0; i < opt.threads; i++) {
		struct end *end = &table.ends[i];

		if (ibv_destroy_qp(end->qp) || ibv_destroy_cq(end->cq) || ibv_destroy_comp_channel(end->channel) ||
		    ibv_dereg_mr(end->mr))
			die("cannot clean up: %s", strerror(errno));
	}
	if (ibv_dealloc_pd(table.pd) || ibv_close_device(table.context))
		die("cannot clean up: %s", strerror(errno));
	fflush(stdout);
	if (table.client)
		_exit(0);
	if (waitpid(child, &status, 0) != child || status)
		die("the client ended with status %x", status);
	return 0;
}

#endif
