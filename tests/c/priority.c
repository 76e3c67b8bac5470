/* Threads of different priority use one adapter on one core.
 *
 *   priority DEVICE GID fifo|plain COUNT
 *
 * One thread posts and polls all the time. Another thread, which may have a real-time priority, repeatedly wakes up
 * meanwhile, writes 64 bytes on its own QP, and polls until the WRITE has completed. If the first thread holds the
 * engine at that time, it must get the core, or it can never release the engine.
 *
 * Prints the number of the COUNT transfers that took more than half a second, and the longest. Exits with 77 if the
 * system allows no real-time priority. */
#define _GNU_SOURCE
#include "threads_rig.h"

enum { DEPTH = 16, LONG = 1 << 20 };

static struct {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	union ibv_gid gid;
	char *memory;
} my;

/* A QP that is connected to itself. */
struct loop {
	struct ibv_cq *cq;
	struct ibv_qp *qp;
};

static void loop_open(struct loop *loop)
{
	if (!(loop->cq = ibv_create_cq(my.context, 4 * DEPTH, NULL, NULL, 0)))
		die("ibv_create_cq: %s", strerror(errno));
	loop->qp = create_qp(my.pd, loop->cq, loop->cq, DEPTH);
	if (connect_qp(loop->qp, loop->qp->qp_num, &my.gid))
		die("no connection: %s", strerror(errno));
}

static int post_write(struct loop *loop, uint32_t length)
{
	struct ibv_sge sge = { .addr = (uintptr_t)my.memory, .length = length, .lkey = my.mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE }, *bad;

	wr.wr.rdma.remote_addr = (uintptr_t)my.memory + LONG;
	wr.wr.rdma.rkey = my.mr->rkey;
	return ibv_post_send(loop->qp, &wr, &bad);
}

static int poll_once(struct loop *loop)
{
	struct ibv_wc wc[4];
	int n = ibv_poll_cq(loop->cq, 4, wc);

	for (int i = 0; i < n; i++)
		if (wc[i].status != IBV_WC_SUCCESS)
			die("a transfer failed: %s", ibv_wc_status_str(wc[i].status));
	return n;
}

static volatile int stop;

static void *busy(void *loop)
{
	while (!stop) {
		post_write(loop, LONG);
		poll_once(loop);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	struct loop mine, others;
	double longest = 0, sum = 0;
	int stalls = 0;
	cpu_set_t cores;
	pthread_t thread;

	if (argc != 5)
		die("usage: priority DEVICE GID fifo|plain COUNT");
	opt.device = argv[1];
	opt.gid = atoi(argv[2]);
	opt.count = atol(argv[4]);
	watch(100);
	/* The first available core; the adapter's thread starts there too. */
	sched_getaffinity(0, sizeof(cores), &cores);
	for (int core = 0, found = 0; core < CPU_SETSIZE; core++)
		if (CPU_ISSET(core, &cores) && found++)
			CPU_CLR(core, &cores);
	if (sched_setaffinity(0, sizeof(cores), &cores))
		die("sched_setaffinity: %s", strerror(errno));
	my.context = open_device();
	my.memory = calloc(2, LONG);
	my.pd = ibv_alloc_pd(my.context);
	my.mr = ibv_reg_mr(my.pd, my.memory, 2 * LONG, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	if (!my.pd || !my.mr || ibv_query_gid(my.context, 1, opt.gid, &my.gid))
		die("no PD, MR or GID: %s", strerror(errno));
	loop_open(&mine);
	loop_open(&others);
	if (pthread_create(&thread, NULL, busy, &others))
		die("pthread_create: %s", strerror(errno));
	if (!strcmp(argv[3], "fifo") &&
	    pthread_setschedparam(pthread_self(), SCHED_FIFO, &(struct sched_param){ .sched_priority = 1 })) {
		fprintf(stderr, "cannot set SCHED_FIFO\n");
		_exit(77);
	}
	for (long i = 0; i < opt.count; i++) {
		double began, took;

		usleep(1000 + i % 7 * 100);
		began = now();
		if (post_write(&mine, 64))
			die("ibv_post_send: %s", strerror(errno));
		while (!poll_once(&mine))
			;
		took = now() - began;
		sum += took;
		stalls += took > 0.5;
		if (took > longest)
			longest = took;
	}
	stop = 1;
	pthread_setschedparam(pthread_self(), SCHED_OTHER, &(struct sched_param){ 0 });
	pthread_join(thread, NULL);
	printf("%d stalls in %ld transfers, longest %.0f us, mean %.0f us\n", stalls, opt.count, longest * 1e6,
	       sum / opt.count * 1e6);
	return 0;
}
