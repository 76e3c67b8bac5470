/*
 * A process forks repeatedly while its other threads register and deregister memory, open and close the device, create
 * QPs, post and poll. The child inherits locks that no thread of the child releases. No call of the child may hang, and
 * the child must be able to open the device again.
 *
 * usage: fork_busy DEVICE FORKS
 * On success prints "ok" as its last line and exits with status 0.
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../c/fatal.h"
#include "../c/setup.h"

enum { SIZE = 1 << 16, SECONDS_OF_A_CHILD = 20, WORKERS = 6 };

static const char *name;
static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr, *paged;
static struct ibv_qp *qp;
static char *memory;
static atomic_bool over;

static struct ibv_qp *make_qp(struct ibv_pd *of, struct ibv_cq *to)
{
	struct ibv_qp_init_attr init = {
		.send_cq = to, .recv_cq = to, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	return ibv_create_qp(of, &init);
}

static int to_init(struct ibv_qp *which)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	return ibv_modify_qp(which, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

static void *registers(void *unused)
{
	char *own = aligned_alloc(4096, SIZE);
	(void)unused;
	while (own && !over) {
		struct ibv_mr *here = ibv_reg_mr(pd, own, SIZE, IBV_ACCESS_LOCAL_WRITE);
		CHECK(here);
		CHECK(!ibv_dereg_mr(here));
	}
	return NULL;
}

static void *registers_on_demand(void *unused)
{
	(void)unused;
	while (!over) {
		struct ibv_mr *here = ibv_reg_mr(pd, memory, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ON_DEMAND);
		CHECK(here);
		CHECK(!ibv_dereg_mr(here));
	}
	return NULL;
}

static void *opens(void *unused)
{
	(void)unused;
	while (!over) {
		struct ibv_context *here = device_open(name);
		CHECK(here);
		struct ibv_pd *its = ibv_alloc_pd(here);
		CHECK(its);
		CHECK(!ibv_dealloc_pd(its));
		CHECK(!ibv_close_device(here));
	}
	return NULL;
}

static void *makes_qps(void *unused)
{
	(void)unused;
	while (!over) {
		struct ibv_cq *its = ibv_create_cq(context, 4, NULL, NULL, 0);
		CHECK(its);
		struct ibv_qp *here = make_qp(pd, its);
		CHECK(here);
		CHECK(!to_init(here));
		CHECK(!ibv_destroy_qp(here));
		CHECK(!ibv_destroy_cq(its));
	}
	return NULL;
}

static void *polls(void *unused)
{
	struct ibv_wc wc;
	(void)unused;
	while (!over)
		CHECK(ibv_poll_cq(cq, 1, &wc) == 0);
	return NULL;
}

static void *posts(void *unused)
{
	struct ibv_sge sge = { .addr = (uintptr_t)memory, .length = 1, .lkey = mr->lkey };
	struct ibv_recv_wr *bad, wr = { .sg_list = &sge, .num_sge = 1 };
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	(void)unused;
	while (!over) {
		int error = ibv_post_recv(qp, &wr, &bad);
		CHECK(!error || error == ENOMEM);
		CHECK(!ibv_query_qp(qp, &attr, IBV_QP_STATE, &init));
	}
	return NULL;
}

/*
 * In the child: calls on the parent's objects fail and do not hang, destroying them succeeds, and the child can create
 * new ones.
 */
static void child(void)
{
	struct ibv_wc wc;
	struct ibv_sge sge = { .addr = (uintptr_t)memory, .length = 1, .lkey = mr->lkey };
	struct ibv_recv_wr *bad, wr = { .sg_list = &sge, .num_sge = 1 };
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	struct ibv_port_attr port;

	CHECK(ibv_post_recv(qp, &wr, &bad) == EIO);
	CHECK(ibv_poll_cq(cq, 1, &wc) < 0);
	CHECK(ibv_req_notify_cq(cq, 0) == EIO);
	CHECK(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) == EIO);
	CHECK(to_init(qp) == EIO);
	CHECK(!ibv_reg_mr(pd, memory, SIZE, IBV_ACCESS_LOCAL_WRITE) && errno == EIO);
	CHECK(!ibv_alloc_pd(context) && errno == EIO);
	CHECK(!make_qp(pd, cq) && errno == EIO);

	CHECK(!ibv_dereg_mr(mr));
	CHECK(!ibv_dereg_mr(paged));
	CHECK(!ibv_destroy_qp(qp));
	CHECK(!ibv_destroy_cq(cq));
	CHECK(!ibv_dealloc_pd(pd));
	CHECK(!ibv_close_device(context));

	CHECK(context = device_open(name));
	CHECK(!ibv_query_port(context, 1, &port) && port.state == IBV_PORT_ACTIVE);
	CHECK(pd = ibv_alloc_pd(context));
	CHECK(cq = ibv_create_cq(context, 4, NULL, NULL, 0));
	CHECK(qp = make_qp(pd, cq));
	CHECK(!to_init(qp));
	CHECK(mr = ibv_reg_mr(pd, memory, SIZE, IBV_ACCESS_LOCAL_WRITE));
	CHECK(paged = ibv_reg_mr(pd, memory, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ON_DEMAND));
	CHECK(!ibv_dereg_mr(paged));
	CHECK(!ibv_dereg_mr(mr));
	CHECK(!ibv_destroy_qp(qp));
	CHECK(!ibv_destroy_cq(cq));
	CHECK(!ibv_dealloc_pd(pd));
	CHECK(!ibv_close_device(context));
	exit(0);
}

int main(int argc, char **argv)
{
	void *(*const work[WORKERS])(void *) = { registers, registers_on_demand, opens, makes_qps, polls, posts };
	pthread_t workers[WORKERS];
	int hung = 0, failed = 0;

	CHECK(argc == 3);
	name = argv[1];
	CHECK(context = device_open(name));
	CHECK(pd = ibv_alloc_pd(context));
	CHECK(cq = ibv_create_cq(context, 16, NULL, NULL, 0));
	CHECK(memory = aligned_alloc(4096, SIZE));
	memset(memory, 1, SIZE);
	CHECK(mr = ibv_reg_mr(pd, memory, SIZE, IBV_ACCESS_LOCAL_WRITE));
	CHECK(paged = ibv_reg_mr(pd, memory, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ON_DEMAND));
	CHECK(qp = make_qp(pd, cq));
	CHECK(!to_init(qp));

	for (int i = 0; i < WORKERS; i++)
		CHECK(!pthread_create(&workers[i], NULL, work[i], NULL));
	for (int left = atoi(argv[2]); left > 0; left--) {
		int status;
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (!pid) {
			alarm(SECONDS_OF_A_CHILD);
			child();
		}
		CHECK(waitpid(pid, &status, 0) == pid);
		hung += WIFSIGNALED(status);
		failed += WIFEXITED(status) && WEXITSTATUS(status);
		/* Each hang takes SECONDS_OF_A_CHILD: stop after two bad children. */
		if (hung + failed > 1)
			break;
	}
	over = true;
	for (int i = 0; i < WORKERS; i++)
		pthread_join(workers[i], NULL);
	if (hung || failed) {
		fprintf(stderr, "%d children hung or crashed, %d failed\n", hung, failed);
		return 1;
	}
	puts("ok");
	return 0;
}
