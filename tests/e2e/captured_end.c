/* Sends a number of WRITEs between two QPs of this process, and then ends as asked: a capture must hold them.
 *
 *   captured_end DEVICE GID abort|assert|segv|term|trap|int|_exit|kill */
#include "../c/threads_rig.h"

#include <assert.h>

enum { WRITES = 100 };

static void end(const char *how)
{
	if (!strcmp(how, "abort"))
		abort();
	if (!strcmp(how, "assert"))
		assert(!"the end");
	if (!strcmp(how, "segv"))
		*(volatile int *)8 = 1;
	if (!strcmp(how, "term"))
		kill(getpid(), SIGTERM);
	/* The kernel's own signal, as that of a terminal: it does not come again by itself. */
	if (!strcmp(how, "trap"))
		__asm__("int3");
	if (!strcmp(how, "int"))
		raise(SIGINT);
	if (!strcmp(how, "kill")) {
		/* What is older than some milliseconds is in the file. */
		usleep(200000);
		kill(getpid(), SIGKILL);
	}
	_exit(0);
}

int main(int argc, char **argv)
{
	static uint8_t area[64];
	struct ibv_qp *qps[2];
	union ibv_gid gid;
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	struct ibv_wc wc;

	/* A shell lets programs in the background ignore it. */
	signal(SIGINT, SIG_DFL);

	if (argc != 4)
		die("usage: captured_end DEVICE GID HOW");
	opt.device = argv[1];
	opt.gid = atoi(argv[2]);
	watch(30);
	context = open_device();
	pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	mr = ibv_reg_mr(pd, area, sizeof(area), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	if (!cq || !mr || ibv_query_gid(context, 1, opt.gid, &gid))
		die("cannot use the device: %s", strerror(errno));
	for (int i = 0; i < 2; i++)
		qps[i] = create_qp(pd, cq, cq, 16);
	for (int i = 0; i < 2; i++)
		if (connect_qp(qps[i], qps[1 - i]->qp_num, &gid))
			die("ibv_modify_qp: %s", strerror(errno));
	for (int i = 0; i < WRITES; i++) {
		struct ibv_sge sge = { (uintptr_t)area, 32, mr->lkey };
		struct ibv_send_wr wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE }, *bad;

		wr.wr.rdma.remote_addr = (uintptr_t)area + 32;
		wr.wr.rdma.rkey = mr->rkey;
		if (ibv_post_send(qps[0], &wr, &bad))
			die("ibv_post_send");
		while (ibv_poll_cq(cq, 1, &wc) == 0)
			;
		if (wc.status)
			die("%s", ibv_wc_status_str(wc.status));
	}
	end(argv[3]);
}
