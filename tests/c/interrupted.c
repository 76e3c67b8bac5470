/* Verbs in a signal handler: it destroys objects while the thread that it interrupts is inside of a call.
 *
 *   interrupted DEVICE ROUNDS
 *
 * Each case runs in its own process, which an alarm ends if it hangs. A call in a handler may succeed or return an error;
 * nothing may hang or crash, and what is left can be destroyed afterwards. Prints "N passed, M failed". */
#define _GNU_SOURCE
#include "check.h"
#include "setup.h"
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIZE = 1 << 14, SECONDS = 60 };

static const char *device;
static int rounds;

static struct ibv_context *context, *other;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *pair[2];
static struct ibv_mr *mr;
static uint8_t *memory;

/* What the handler destroys. */
static struct ibv_qp *volatile qp_to_destroy;
static struct ibv_mr *volatile mr_to_destroy;
static struct ibv_cq *volatile cq_to_destroy;
static struct ibv_context *volatile context_to_close;
static volatile sig_atomic_t destroyed, refused;

static void count(int result)
{
	if (result)
		refused++;
	else
		destroyed++;
}

static void handler(int signal)
{
	int before = errno;

	(void)signal;
	if (qp_to_destroy) {
		struct ibv_qp *qp = qp_to_destroy;

		qp_to_destroy = NULL;
		count(ibv_destroy_qp(qp));
	}
	if (mr_to_destroy) {
		struct ibv_mr *region = mr_to_destroy;

		mr_to_destroy = NULL;
		count(ibv_dereg_mr(region));
	}
	if (cq_to_destroy) {
		struct ibv_cq *queue = cq_to_destroy;

		cq_to_destroy = NULL;
		count(ibv_destroy_cq(queue));
	}
	if (context_to_close) {
		struct ibv_context *closed = context_to_close;

		context_to_close = NULL;
		count(ibv_close_device(closed));
	}
	errno = before;
}

static struct ibv_qp *make_qp(void)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
					 .cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1,
						  .max_recv_sge = 1 } };

	return ibv_create_qp(pd, &init);
}

static int set_up(void)
{
	union ibv_gid gid;
	int index;

	context = device_open(device);
	if (!context || (index = best_gid(context, 1)) < 0 || ibv_query_gid(context, 1, index, &gid))
		return 0;
	pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	mr = ibv_reg_mr(pd, memory, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	for (int i = 0; i < 2; i++)
		if (!(pair[i] = make_qp()))
			return 0;
	for (int i = 0; i < 2; i++)
		if (rc_connect(pair[i], rc_attr(pair[!i]->qp_num, &gid, index)))
			return 0;
	return 1;
}

/* The calls that are interrupted. */

static void transfer(void)
{
	struct ibv_sge sge = { (uintptr_t)memory, SIZE / 2, mr->lkey };
	struct ibv_send_wr *bad, wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
					.wr.rdma = { (uintptr_t)memory + SIZE / 2, mr->rkey } };
	struct ibv_wc wc;

	if (ibv_post_send(pair[0], &wr, &bad))
		return;
	while (!ibv_poll_cq(cq, 1, &wc))
		;
}

static void register_memory(void)
{
	struct ibv_mr *region = ibv_reg_mr(pd, memory, SIZE, IBV_ACCESS_LOCAL_WRITE);

	if (region)
		ibv_dereg_mr(region);
}

static void make_and_destroy(void)
{
	struct ibv_qp *qp = make_qp();

	if (qp)
		ibv_destroy_qp(qp);
}

static void (*const calls[])(void) = { transfer, register_memory, make_and_destroy };
static const char *const call_names[] = { "post and poll", "registration", "creation" };
static const char *const kinds[] = { "a QP", "a region", "a CQ", "a device" };

/* The object for the handler. Returns whether there is one. */
static int offer(int kind)
{
	switch (kind) {
	case 0:
		return !!(qp_to_destroy = make_qp());
	case 1:
		return !!(mr_to_destroy = ibv_reg_mr(pd, memory, SIZE, IBV_ACCESS_LOCAL_WRITE));
	case 2:
		return !!(cq_to_destroy = ibv_create_cq(context, 8, NULL, NULL, 0));
	default:
		return !!(context_to_close = other = device_open(device));
	}
}

static int run(int call, int kind)
{
	struct sigaction action = { .sa_handler = handler, .sa_flags = SA_RESTART };

	alarm(SECONDS);
	if (!check(set_up(), "set-up"))
		return 1;
	sigaction(SIGVTALRM, &action, NULL);
	for (int round = 0; round < rounds; round++) {
		int before = destroyed + refused;
		/* The timer is of CPU time, so that it interrupts a call that runs, wherever it is. */
		struct itimerval timer = { .it_value.tv_usec = 1 + rand() % 300 };

		if (!check(offer(kind), "%s for the handler", kinds[kind]))
			return 1;
		setitimer(ITIMER_VIRTUAL, &timer, NULL);
		while (destroyed + refused == before)
			calls[call]();
	}
	check(!ibv_destroy_qp(pair[0]) && !ibv_destroy_qp(pair[1]), "the QPs are destroyed");
	check(!ibv_dereg_mr(mr) || refused, "the region is destroyed");
	check(destroyed + refused == rounds, "%d destroyed, %d refused", destroyed, refused);
	printf("%s, interrupted for %s: %d destroyed, %d refused\n", call_names[call], kinds[kind], destroyed, refused);
	fflush(stdout);
	return failed != 0;
}

int main(int argc, char **argv)
{
	if (argc != 3)
		return 2;
	device = argv[1];
	rounds = atoi(argv[2]);
	for (int call = 0; call < 3; call++)
		for (int kind = 0; kind < 4; kind++) {
			pid_t child = fork();
			int status;

			if (!child)
				_exit(run(call, kind));
			waitpid(child, &status, 0);
			check(!status, "%s, interrupted by a handler that destroys %s: status %x", call_names[call],
			      kinds[kind], status);
		}
	printf("%d passed, %d failed\n", passed, failed);
	return failed != 0;
}
