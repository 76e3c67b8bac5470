/* Two processes: the near one has ODP memory and changes it, the far one transfers to and from it on request. */
#ifndef INVALIDATE_RIG_H
#define INVALIDATE_RIG_H

#define _GNU_SOURCE
#include <errno.h>
#include <infiniband/verbs.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "setup.h"

/* Four pages, four packets. */
#define LEN 16384
#define SECONDS 30

static struct { const char *device; int gid; long rounds; int raw; } opt = { .gid = 1, .rounds = 1000 };

/* Operations. The far side does the first two, to and from near memory; the near side does the others. */
enum op { WRITE, READ, SEND, FETCH, OPS, RECONNECT, QUIT };
static const char *const op_names[] = { "WRITE to it", "READ of it", "SEND from it", "READ into it" };

struct side { uint32_t qpn, psn; union ibv_gid gid; uint64_t addr; uint32_t rkey; };

/* Memory shared by the processes. */
static struct shared {
	_Atomic long asked, ready, done;
	_Atomic int dead;
	enum op op;
	uint64_t addr;
	uint32_t rkey, len;
	uint8_t value, allowed[256];
	/* The reply: the completion status, and the number of bytes with values that are not allowed. */
	int status;
	long wrong;
	struct side near, far;
} *shared;

static int is_far;
static pid_t child;
static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static union ibv_gid own_gid;
static uint8_t *buffer;
static struct ibv_mr *buffer_mr;
static long failures;

static inline double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

__attribute__((noreturn, format(printf, 1, 2))) static inline void die(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	fprintf(stderr, "%s: ", is_far ? "far" : "near");
	vfprintf(stderr, format, args);
	fprintf(stderr, "\n");
	shared->dead = 1;
	_exit(1);
}

__attribute__((format(printf, 1, 2))) static inline void wrong(const char *format, ...)
{
	va_list args;

	if (failures++ >= 20)
		return;
	va_start(args, format);
	vfprintf(stderr, format, args);
	fprintf(stderr, "\n");
	va_end(args);
}

/* Yields after some spins: the other side may need this core. */
static inline void wait_for(_Atomic long *what, long value)
{
	double end = 0;

	for (long spins = 0; *what < value; spins++) {
		if (spins < 200)
			continue;
		sched_yield();
		if (shared->dead)
			_exit(1);
		if (spins % 1024)
			continue;
		if (!end)
			end = now() + 2 * SECONDS;
		if (now() > end)
			die("the other side does not respond");
	}
}

static inline void spin(double seconds)
{
	double end = now() + seconds;

	while (now() < end)
		;
}

/* Number of bytes with values that are not allowed. */
static inline long others(const uint8_t *bytes, size_t len, const uint8_t allowed[256])
{
	long count = 0;

	for (size_t i = 0; i < len; i++)
		count += !allowed[bytes[i]];
	return count;
}

static inline void connect_to(const struct side *own, const struct side *other)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };
	struct ibv_wc wc;
	int error;

	if (ibv_modify_qp(qp, &attr, IBV_QP_STATE))
		die("to RESET");
	while (ibv_poll_cq(cq, 1, &wc) > 0)
		;
	attr = rc_attr(other->qpn, &other->gid, opt.gid);
	attr.path_mtu = IBV_MTU_4096;
	attr.min_rnr_timer = 1;
	attr.rq_psn = other->psn;
	attr.sq_psn = own->psn;
	/* Half a second, for a busy machine; less with raw calls, because packets are often lost then. */
	attr.timeout = opt.raw ? 14 : 17;
	if ((error = rc_connect(qp, attr)))
		die("cannot connect: %s", strerror(error));
}

static inline void open_side(struct side *own)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { 16, 16, 4, 4, 0 } };

	context = device_open(opt.device);
	if (!context || !(pd = ibv_alloc_pd(context)) || ibv_query_gid(context, 1, opt.gid, &own_gid))
		die("cannot open %s: %s", opt.device ? opt.device : "any device", strerror(errno));
	init.send_cq = init.recv_cq = cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	if (!cq || !(qp = ibv_create_qp(pd, &init)))
		die("no QP: %s", strerror(errno));
	buffer = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	buffer_mr = ibv_reg_mr(pd, buffer, LEN,
			       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	if (!buffer_mr)
		die("no MR: %s", strerror(errno));
	*own = (struct side){ qp->qp_num, 1000, own_gid, (uintptr_t)buffer, buffer_mr->rkey };
}

/* Sends a request to the far side; `wait_for_reply` waits for its end. */
static inline void send_request(enum op op, uint64_t addr, uint32_t rkey, uint32_t len, uint8_t value)
{
	shared->op = op;
	shared->addr = addr;
	shared->rkey = rkey;
	shared->len = len;
	shared->value = value;
	shared->asked++;
}

static inline int wait_for_reply(void)
{
	wait_for(&shared->done, shared->asked);
	return shared->status;
}

static inline int request_and_wait(enum op op, uint64_t addr, uint32_t rkey, uint32_t len, uint8_t value)
{
	send_request(op, addr, rkey, len, value);
	return wait_for_reply();
}

static inline void reconnect(void)
{
	/* Packets of the old connection must not fit the new one. */
	shared->near.psn = (shared->near.psn + 0x12345) & 0xffffff;
	shared->far.psn = (shared->far.psn + 0x23456) & 0xffffff;
	connect_to(&shared->near, &shared->far);
	request_and_wait(RECONNECT, 0, 0, 0, 0);
}

static inline void open_both(void)
{
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED)
		exit(1);
	child = fork();
	is_far = !child;
	open_side(is_far ? &shared->far : &shared->near);
	if (is_far) {
		shared->done++;
		return;
	}
	wait_for(&shared->done, 1);
	shared->asked = 1;
	reconnect();
}

static inline int close_both(void)
{
	int status = 0;

	if (!is_far) {
		send_request(QUIT, 0, 0, 0, 0);
		waitpid(child, &status, 0);
	}
	return failures || status;
}

static inline void post(enum ibv_wr_opcode opcode, uint64_t local, uint32_t lkey, uint64_t addr, uint32_t rkey,
			uint32_t len)
{
	struct ibv_sge sge = { local, len, lkey };
	struct ibv_send_wr *bad, wr = { .opcode = opcode, .sg_list = &sge, .num_sge = 1,
					.send_flags = IBV_SEND_SIGNALED };

	wr.wr.rdma.remote_addr = addr;
	wr.wr.rdma.rkey = rkey;
	if (ibv_post_send(qp, &wr, &bad))
		die("ibv_post_send: %s", strerror(errno));
}

/* The status of the next completion, which must come within SECONDS. */
static inline int completion(const char *what)
{
	struct ibv_wc wc;
	double end = now() + SECONDS;
	int n;

	while (!(n = ibv_poll_cq(cq, 1, &wc)))
		if (now() > end)
			die("%s: no completion within %d s", what, SECONDS);
	if (n < 0)
		die("%s: ibv_poll_cq", what);
	return wc.status;
}

/* The far side: executes requests until QUIT. */
static inline void serve(void)
{
	struct ibv_recv_wr *bad_recv, recv = { .num_sge = 1 };
	struct ibv_sge sge = { (uintptr_t)buffer, LEN, buffer_mr->lkey };

	for (long n = 2;; n++) {
		wait_for(&shared->asked, n);
		switch (shared->op) {
		case WRITE:
			memset(buffer, shared->value, shared->len);
			post(IBV_WR_RDMA_WRITE, (uintptr_t)buffer, buffer_mr->lkey, shared->addr, shared->rkey, shared->len);
			shared->status = completion("WRITE");
			break;
		case READ:
			memset(buffer, 0, LEN);
			post(IBV_WR_RDMA_READ, (uintptr_t)buffer, buffer_mr->lkey, shared->addr, shared->rkey, shared->len);
			shared->status = completion("READ");
			shared->wrong = others(buffer, shared->len, shared->allowed);
			break;
		case SEND:
			/* `ready` when the receive is posted; the next request asks for the SEND's status. */
			memset(buffer, 0, LEN);
			recv.sg_list = &sge;
			if (ibv_post_recv(qp, &recv, &bad_recv))
				die("ibv_post_recv");
			shared->ready = n;
			wait_for(&shared->asked, ++n);
			if (shared->status == IBV_WC_SUCCESS)
				shared->status = completion("RECV");
			shared->wrong = others(buffer, shared->len, shared->allowed);
			break;
		case FETCH:
			memset(buffer, shared->value, shared->len);
			break;
		case RECONNECT:
			connect_to(&shared->far, &shared->near);
			break;
		default:
			return;
		}
		shared->done = n;
	}
}

#endif
