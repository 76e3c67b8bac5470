/* Common parts of the programs with threads: options, random numbers, connected QPs. */
#ifndef THREADS_RIG_H
#define THREADS_RIG_H

#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "setup.h"

enum { MAX_THREADS = 64 };

static struct {
	const char *device;
	int gid, seconds, threads;
	long count;
	uint64_t seed;
} opt = { .gid = 1, .seconds = 5, .threads = 4, .count = 20000 };

__attribute__((noreturn, format(printf, 1, 2))) static inline void die(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	fprintf(stderr, "threads (seed %" PRIu64 "): ", opt.seed);
	vfprintf(stderr, format, args);
	fprintf(stderr, "\n");
	va_end(args);
	/* Not exit(): other threads still use the objects. */
	_exit(2);
}

static inline double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

/* Random numbers of one thread: SplitMix64. */
static inline uint64_t draw(uint64_t *rng, uint64_t below)
{
	uint64_t x = (*rng += 0x9e3779b97f4a7c15);

	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
	x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
	return (x ^ (x >> 31)) % below;
}

/* Ends the program: a call that never returns is a failure too. */
static void hung(int signal)
{
	static const char text[] = "threads: hung\n";

	(void)signal;
	if (write(2, text, sizeof(text) - 1) < 0)
		_exit(4);
	_exit(3);
}

static inline void watch(int seconds)
{
	signal(SIGALRM, hung);
	alarm(seconds);
}

static inline struct ibv_context *open_device(void)
{
	struct ibv_context *context = device_open(opt.device);

	if (!context)
		die("cannot open %s: %s", opt.device ? opt.device : "any device", strerror(errno));
	return context;
}

static inline struct ibv_qp *create_qp(struct ibv_pd *pd, struct ibv_cq *send, struct ibv_cq *recv, int depth)
{
	struct ibv_qp_init_attr init = { .send_cq = send, .recv_cq = recv, .qp_type = IBV_QPT_RC, .sq_sig_all = 1 };
	struct ibv_qp *qp;

	init.cap = (struct ibv_qp_cap){ depth, depth, 1, 1, 16 };
	if (!(qp = ibv_create_qp(pd, &init)))
		die("ibv_create_qp: %s", strerror(errno));
	return qp;
}

/* Moves a QP from RESET to RTS, connected to another QP. Returns the error of ibv_modify_qp. */
static inline int connect_qp(struct ibv_qp *qp, uint32_t to, const union ibv_gid *gid)
{
	struct ibv_qp_attr attr = rc_attr(to, gid, opt.gid);

	attr.min_rnr_timer = 1;
	return rc_connect(qp, attr);
}

static inline int to_state(struct ibv_qp *qp, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = { .qp_state = state };

	return ibv_modify_qp(qp, &attr, IBV_QP_STATE);
}

#endif
