/*
 * layered: what a layer between this program and libibverbs must see, and must not change.
 *
 *   layered MODE
 *
 * Two QPs of one device are connected to each other. With -DOPENED the program opens libibverbs by itself, and looks up
 * its functions, half of them with a version. It prints a last line "N passed, M failed", then ends as MODE says: exit,
 * _exit, kill (SIGKILL), fork (a child opens the device too), open (a request to a peer that is gone, and SIGKILL),
 * silent (a WRITE without a completion, 500 ms before one with a completion, then exit),
 * limits (work requests that the library refuses, in the process and in a child, then exit).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

#ifdef OPENED
#define FUNCTIONS(F) \
	F(ibv_get_device_list) F(ibv_free_device_list) F(ibv_open_device) F(ibv_close_device) F(ibv_alloc_pd) \
	F(ibv_dealloc_pd) F(ibv_create_cq) F(ibv_destroy_cq) F(ibv_create_qp) F(ibv_modify_qp) F(ibv_destroy_qp) \
	F(ibv_dereg_mr) F(ibv_query_gid) F(ibv_reg_mr)
#undef ibv_reg_mr
#define DECLARE(name) static __typeof__(name) *opened_##name;
FUNCTIONS(DECLARE)
#define ibv_get_device_list opened_ibv_get_device_list
#define ibv_free_device_list opened_ibv_free_device_list
#define ibv_open_device opened_ibv_open_device
#define ibv_close_device opened_ibv_close_device
#define ibv_alloc_pd opened_ibv_alloc_pd
#define ibv_dealloc_pd opened_ibv_dealloc_pd
#define ibv_create_cq opened_ibv_create_cq
#define ibv_destroy_cq opened_ibv_destroy_cq
#define ibv_create_qp opened_ibv_create_qp
#define ibv_modify_qp opened_ibv_modify_qp
#define ibv_destroy_qp opened_ibv_destroy_qp
#define ibv_dereg_mr opened_ibv_dereg_mr
#define ibv_query_gid opened_ibv_query_gid
#define ibv_reg_mr opened_ibv_reg_mr

static void look_up(void)
{
	void *library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
	int odd = 0;

	if (!library) {
		printf("%s\n", dlerror());
		exit(2);
	}
#define LOOK_UP(name) LOOK_UP_OF(name, #name)
#define LOOK_UP_OF(name, text) \
	name = (odd ^= 1) ? dlsym(library, strstr(text, "ibv_")) : dlvsym(library, strstr(text, "ibv_"), "IBVERBS_1.1"); \
	check(!!name, "%s", text);
	FUNCTIONS(LOOK_UP)
	check(!dlsym(library, "no_such_function") && strstr(dlerror(), "no_such_function"), "an unknown function");
	check(!dlvsym(library, "ibv_alloc_pd", "IBVERBS_0.9"), "an unknown version");
}
#else
static void look_up(void)
{
	void *self = dlopen(NULL, RTLD_NOW);

	check(dlsym(self, "ibv_open_device") == (void *)ibv_open_device, "the program's own definition");
}
#endif

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *qp[2];
static struct ibv_mr *pinned, *on_demand;
static char *memory;

#define BYTES 65536

static void open_all(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	context = list && list[0] ? ibv_open_device(list[0]) : NULL;
	if (!check(context != NULL, "a device"))
		exit(2);
	ibv_free_device_list(list);
	pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	memory = mmap(NULL, 2 * BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	pinned = ibv_reg_mr(pd, memory, BYTES,
			    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	on_demand = ibv_reg_mr(pd, memory + BYTES, BYTES, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ON_DEMAND);
	check(pinned && on_demand, "memory");
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_init_attr attr = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
						 .cap = { 16, 16, 2, 2, 64 } };

		qp[i] = ibv_create_qp(pd, &attr);
		if (!check(qp[i] != NULL, "a QP"))
			exit(2);
	}
}

static void connect_both(int timeout)
{
	union ibv_gid gid;

	check(!ibv_query_gid(context, 1, 1, &gid), "a GID");
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_attr attr = {
			.qp_state = IBV_QPS_INIT, .port_num = 1, .path_mtu = IBV_MTU_1024,
			.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
			.dest_qp_num = qp[!i]->qp_num, .max_dest_rd_atomic = 4, .min_rnr_timer = 16,
			.ah_attr = { .is_global = 1, .port_num = 1,
				     .grh = { .dgid = gid, .sgid_index = 1, .hop_limit = 64 } },
			.timeout = timeout, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 4,
		};
		int error = ibv_modify_qp(qp[i], &attr,
					  IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);

		attr.qp_state = IBV_QPS_RTR;
		error |= ibv_modify_qp(qp[i], &attr,
				       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
		attr.qp_state = IBV_QPS_RTS;
		error |= ibv_modify_qp(qp[i], &attr,
				       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
					       IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
		check(!error, "RTS");
	}
}

static int post(int opcode, uint64_t id, int flags, struct ibv_mr *from)
{
	struct ibv_sge sge = { (uintptr_t)from->addr, 100, from->lkey };
	struct ibv_send_wr *bad, wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = opcode,
					.send_flags = flags };

	wr.wr.rdma.remote_addr = (uintptr_t)pinned->addr + 4096;
	wr.wr.rdma.rkey = pinned->rkey;
	return ibv_post_send(qp[0], &wr, &bad);
}

static void receive(uint64_t id)
{
	struct ibv_sge sge = { (uintptr_t)pinned->addr + 8192, 100, pinned->lkey };
	struct ibv_recv_wr *bad, wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 };

	check(!ibv_post_recv(qp[1], &wr, &bad), "a receive");
}

/* Polls until `count` completions came. */
static void complete(int count, uint64_t first, int status)
{
	struct ibv_wc wc;

	for (int i = 0; i < count;) {
		int n = ibv_poll_cq(cq, 1, &wc);

		if (n == 0)
			continue;
		if (!check(n == 1 && wc.status == (unsigned)status, "status %d of %d", wc.status, (int)wc.wr_id))
			return;
		if (first)
			check(wc.wr_id == first + i, "ID %d instead of %d", (int)wc.wr_id, (int)first + i);
		i++;
	}
}

/* Polls for a while, during which nothing completes. */
static void idle(long ms)
{
	struct timespec now, begin;
	struct ibv_wc wc;

	clock_gettime(CLOCK_MONOTONIC, &begin);
	do {
		if (!check(ibv_poll_cq(cq, 1, &wc) == 0, "nothing is ready"))
			return;
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while ((now.tv_sec - begin.tv_sec) * 1000 + (now.tv_nsec - begin.tv_nsec) / 1000000 < ms);
}

static void communicate(void)
{

	for (int i = 0; i < 100; i++) {
		check(!post(IBV_WR_RDMA_WRITE, 2 * i + 1, 0, pinned), "a WRITE");
		check(!post(IBV_WR_RDMA_READ, 2 * i + 2, IBV_SEND_SIGNALED, on_demand), "a READ");
		complete(1, 2 * i + 2, IBV_WC_SUCCESS);
	}
	/* More than the send queue holds: the rest is refused. */
	for (int i = 0, error = 0; i < 64; i++) {
		error = post(IBV_WR_RDMA_WRITE, 1000 + i, IBV_SEND_SIGNALED, pinned);
		if (error) {
			check(i >= 16, "%d requests", i);
			complete(i, 1000, IBV_WC_SUCCESS);
			break;
		}
		check(i < 63, "a queue without an end");
	}
	/* The receiver is not ready for a while, during which the program polls. */
	check(!post(IBV_WR_SEND, 5, IBV_SEND_SIGNALED, pinned), "a SEND");
	idle(60);
	receive(6);
	complete(2, 0, IBV_WC_SUCCESS);
}

#ifndef OPENED
static struct ibv_qp_ex *extended_qp(void)
{
	struct ibv_qp_init_attr_ex attr = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .pd = pd,
					    .cap = { 16, 16, 2, 2, 64 },
					    .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
					    .send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE };
	struct ibv_qp *made = ibv_create_qp_ex(context, &attr);

	if (!check(made != NULL, "an extended QP"))
		exit(2);
	return ibv_qp_to_qp_ex(made);
}

static int build(struct ibv_qp_ex *to)
{
	ibv_wr_start(to);
	to->wr_id = 1;
	to->wr_flags = 0;
	ibv_wr_rdma_write(to, pinned->rkey, (uintptr_t)pinned->addr);
	ibv_wr_set_sge(to, pinned->lkey, (uintptr_t)pinned->addr, 8);
	return ibv_wr_complete(to);
}

static void limits(void)
{
	struct ibv_send_wr *bad = NULL;
	struct ibv_send_wr wr = { .num_sge = 1000, .sg_list = (void *)8, .opcode = IBV_WR_SEND };
	struct ibv_qp_ex *first, *second;
	pid_t child;
	int status;

	/* Lists of SGEs that nothing may read. */
	check(ibv_post_send(qp[0], &wr, &bad) && bad == &wr, "too many SGEs");
	first = extended_qp();
	ibv_wr_start(first);
	ibv_wr_rdma_write(first, 0, 0);
	ibv_wr_set_sge_list(first, 1000, (void *)8);
	check(ibv_wr_complete(first), "too many SGEs, built");
	child = fork();
	if (!child)
		_exit(build(first) != 0 && ibv_post_send(qp[0], &wr, &bad) ? 0 : 1);
	check(waitpid(child, &status, 0) == child && status == 0, "a child posts nothing: status %x", status);
	/* A QP that is destroyed between wr_start and wr_complete. */
	ibv_wr_start(first);
	check(!ibv_destroy_qp(&first->qp_base), "destroy_qp");
	second = extended_qp();
	check(build(second), "this QP is not connected");
	check(!ibv_destroy_qp(&second->qp_base), "destroy_qp");
}
#endif

static void close_all(void)
{
	check(!ibv_destroy_qp(qp[0]) && !ibv_destroy_qp(qp[1]), "destroy_qp");
	check(!ibv_dereg_mr(pinned) && !ibv_dereg_mr(on_demand), "dereg_mr");
	check(!ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context), "close");
}

static void in_child(void)
{
	pid_t child = fork();
	int status;

	if (!child) {
		open_all();
		connect_both(14);
		communicate();
		close_all();
		fflush(stdout);
		_exit(failed != 0);
	}
	check(waitpid(child, &status, 0) == child && status == 0, "the child's status %x", status);
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "exit";

	look_up();
	open_all();
	if (!strcmp(mode, "fork"))
		in_child();
	connect_both(14);
	communicate();
	if (!strcmp(mode, "open")) {
		/* The peer is gone: the adapter repeats it until its retries are exhausted, after 0.5 s at least. */
		check(!ibv_destroy_qp(qp[1]), "destroy_qp");
		check(!post(IBV_WR_RDMA_WRITE, 6, 0, pinned), "a WRITE without a completion");
		check(!post(IBV_WR_RDMA_READ, 7, IBV_SEND_SIGNALED, pinned), "a READ");
		usleep(400000);
	}
	if (!strcmp(mode, "silent")) {
		check(!post(IBV_WR_RDMA_WRITE, 6, 0, pinned), "a WRITE without a completion");
		idle(500);
		check(!post(IBV_WR_RDMA_WRITE, 7, IBV_SEND_SIGNALED, pinned), "a WRITE");
		complete(1, 7, IBV_WC_SUCCESS);
	}
#ifndef OPENED
	if (!strcmp(mode, "limits"))
		limits();
#endif
	if (!strcmp(mode, "exit") || !strcmp(mode, "fork") || !strcmp(mode, "limits") ||
	    !strcmp(mode, "silent"))
		close_all();
	printf("%d passed, %d failed\n", passed, failed);
	fflush(stdout);
	if (!strcmp(mode, "kill") || !strcmp(mode, "open"))
		kill(getpid(), SIGKILL);
	if (!strcmp(mode, "_exit"))
		_exit(0);
	return failed != 0;
}
