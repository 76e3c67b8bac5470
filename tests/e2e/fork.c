/*
 * A process forks while it uses RDMA. The child must not disturb the adapter of its parent: its posts fail, and its
 * destroy calls and its exit damage nothing. The parent's transfers go on, with every byte correct.
 *
 * usage: fork DEVICE GID_INDEX
 * Connects two QPs of one process to each other. On success prints "ok" as its last line and exits with status 0.
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../c/fatal.h"
#include "../c/setup.h"

enum { SIZE = 1 << 20, SECONDS = 10 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *source_mr, *target_mr;
static struct ibv_qp *qps[2];
static uint8_t *source, *target;

static void open_device(const char *name)
{
	CHECK(context = device_open(name));
	CHECK(pd = ibv_alloc_pd(context));
	CHECK(cq = ibv_create_cq(context, 64, NULL, NULL, 0));
	CHECK(source = aligned_alloc(4096, SIZE));
	CHECK(target = aligned_alloc(4096, SIZE));
	CHECK(source_mr = ibv_reg_mr(pd, source, SIZE, IBV_ACCESS_LOCAL_WRITE));
	CHECK(target_mr = ibv_reg_mr(pd, target, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
}

static void connect_qps(int gid_index)
{
	union ibv_gid gid;
	CHECK(!ibv_query_gid(context, 1, gid_index, &gid));
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_init_attr init = {
			.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
			.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1 },
		};
		CHECK(qps[i] = ibv_create_qp(pd, &init));
	}
	for (int i = 0; i < 2; i++)
		CHECK(!rc_connect(qps[i], rc_attr(qps[!i]->qp_num, &gid, gid_index)));
}

/* Posts a WRITE of the whole buffer; returns the result of ibv_post_send. */
static int post_write(void)
{
	struct ibv_sge sge = { .addr = (uintptr_t)source, .length = SIZE, .lkey = source_mr->lkey };
	struct ibv_send_wr *bad, wr = {
		.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
		.wr.rdma = { .remote_addr = (uintptr_t)target, .rkey = target_mr->rkey },
	};
	return ibv_post_send(qps[0], &wr, &bad);
}

/* The status of the next completion; -1 if polling fails, -2 if no completion comes in time. */
static int completion(int seconds)
{
	time_t end = time(NULL) + seconds;
	struct ibv_wc wc;
	while (time(NULL) <= end) {
		int got = ibv_poll_cq(cq, 1, &wc);
		if (got < 0)
			return -1;
		if (got)
			return wc.status;
	}
	return -2;
}

static void fill(int round)
{
	for (size_t i = 0; i < SIZE; i++)
		source[i] = (uint8_t)(i * 7 + i / 251 + round * 13);
}

/* One WRITE: post, completion, comparison. */
static void write_and_compare(int round)
{
	fill(round);
	CHECK(!post_write());
	CHECK(completion(SECONDS) == IBV_WC_SUCCESS);
	CHECK(!memcmp(source, target, SIZE));
}

/* In the child: no transfer succeeds, and no call hangs or crashes. */
static void child(void)
{
	if (!post_write())
		CHECK(completion(1) != IBV_WC_SUCCESS);
	struct ibv_cq *another = ibv_create_cq(context, 1, NULL, NULL, 0);
	if (another)
		ibv_destroy_cq(another);
	ibv_destroy_qp(qps[0]);
	ibv_dereg_mr(source_mr);
	ibv_close_device(context);
	exit(0); /* runs atexit handlers, which must not touch the parent's adapter */
}

static void fork_child(void)
{
	fflush(NULL);
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		alarm(SECONDS);
		child();
	}
	int status;
	CHECK(waitpid(pid, &status, 0) == pid);
	CHECK(WIFEXITED(status) && !WEXITSTATUS(status));
}

int main(int argc, char **argv)
{
	CHECK(argc == 3);
	alarm(6 * SECONDS);
	open_device(argv[1]);
	connect_qps(atoi(argv[2]));

	write_and_compare(0);
	fork_child();
	write_and_compare(1);

	/* With a WRITE under way. */
	fill(2);
	CHECK(!post_write());
	fork_child();
	CHECK(completion(SECONDS) == IBV_WC_SUCCESS);
	CHECK(!memcmp(source, target, SIZE));

	/* fork and exec, the most common use of fork. */
	CHECK(!system("exit 0"));
	write_and_compare(3);
	puts("ok");
	return 0;
}
