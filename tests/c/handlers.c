/* Signal handlers that destroy objects while the interrupted thread is inside of the library. Verbs are not
 * async-signal-safe: a call in a handler may fail with EDEADLK, but it must return, and all objects stay usable.
 *
 *   handlers DEVICE GID_INDEX ROUNDS [all]
 *
 * Not promised, and tried only with `all`: ibv_dereg_mr, and ibv_destroy_qp within posts and polls. The interrupted call
 * may hold the lock of a QP, of a CQ or of the table of regions, for some instructions. Such a case hangs now and then.
 *
 * Each case runs in its own process: the main thread repeats one call, another thread sends it SIGUSR1 at random times,
 * and the handler makes its call. Prints failures and a last line "N passed, M failed". */
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#include "fatal.h"
#include "setup.h"

enum { SIZE = 1 << 16, SECONDS = 20 };

static const char *device;
static int gid_index, rounds;

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_comp_channel *channel;
static struct ibv_mr *mr;
static struct ibv_qp *pair[2];
static char memory[SIZE];

/* What the handler destroys: each is made anew by the main thread. */
static struct ibv_qp *volatile victim_qp;
static struct ibv_cq *volatile victim_cq;
static struct ibv_mr *volatile victim_mr;
static struct ibv_context *volatile victim_context;

/* What the handler calls, how often it did, and how often it was refused. */
static void (*volatile in_handler)(void);
static volatile sig_atomic_t calls, refused;
static volatile int ended;
static long posted, polled;

static struct ibv_qp *make_qp(struct ibv_cq *of)
{
	struct ibv_qp_init_attr init = { .send_cq = of, .recv_cq = of, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
					 .cap = { 16, 16, 1, 1, 0 } };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);

	CHECK(qp);
	return qp;
}

static void open_all(void)
{
	union ibv_gid gid;

	CHECK(context = device_open(device));
	CHECK(pd = ibv_alloc_pd(context));
	CHECK(channel = ibv_create_comp_channel(context));
	CHECK(cq = ibv_create_cq(context, 64, NULL, channel, 0));
	CHECK(mr = ibv_reg_mr(pd, memory, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
	CHECK(!ibv_query_gid(context, 1, gid_index, &gid));
	for (int i = 0; i < 2; i++)
		pair[i] = make_qp(cq);
	for (int i = 0; i < 2; i++)
		CHECK(!rc_connect(pair[i], rc_attr(pair[!i]->qp_num, &gid, gid_index)));
}

static void result(int error)
{
	CHECK(!error || error == EDEADLK);
	refused += !!error;
	calls++;
}

static void destroy_qp(void)
{
	struct ibv_qp *qp = victim_qp;

	if (!qp)
		return;
	int got = ibv_destroy_qp(qp);
	if (!got)
		victim_qp = NULL;
	result(got);
}

static void destroy_cq(void)
{
	struct ibv_cq *of = victim_cq;

	if (!of)
		return;
	int got = ibv_destroy_cq(of);
	if (!got)
		victim_cq = NULL;
	result(got);
}

static void dereg_mr(void)
{
	struct ibv_mr *region = victim_mr;

	if (!region)
		return;
	int got = ibv_dereg_mr(region);
	if (!got)
		victim_mr = NULL;
	result(got);
}

static void close_device(void)
{
	struct ibv_context *of = victim_context;

	if (!of)
		return;
	int got = ibv_close_device(of);
	if (!got)
		victim_context = NULL;
	result(got ? errno : 0);
}

static void handler(int signal)
{
	int before = errno;

	(void)signal;
	in_handler();
	errno = before;
}

static void reap(void)
{
	struct ibv_wc wc[8];
	int got = ibv_poll_cq(cq, 8, wc);

	CHECK(got >= 0);
	for (int i = 0; i < got; i++)
		CHECK(wc[i].status == IBV_WC_SUCCESS);
	polled += got;
}

static void post(void)
{
	struct ibv_sge sge = { (uintptr_t)memory, 8192, mr->lkey };
	struct ibv_send_wr *bad, wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
					.wr.rdma = { (uintptr_t)memory + SIZE / 2, mr->rkey } };
	int got = ibv_post_send(pair[0], &wr, &bad);

	CHECK(!got || got == ENOMEM);
	posted += !got;
	if (got)
		reap();
}

static void poll_once(void)
{
	post();
	for (int i = 0; i < 20; i++)
		reap();
}

static void reg(void)
{
	struct ibv_mr *made = ibv_reg_mr(pd, memory, SIZE, IBV_ACCESS_LOCAL_WRITE);

	CHECK(made && !ibv_dereg_mr(made));
}

static void create(void)
{
	CHECK(!ibv_destroy_qp(make_qp(cq)));
}

static void await_event(void)
{
	struct pollfd fd = { .fd = channel->fd, .events = POLLIN };
	struct ibv_cq *of;
	void *unused;

	CHECK(!ibv_req_notify_cq(cq, 0));
	post();
	if (poll(&fd, 1, 5) == 1) {
		CHECK(!ibv_get_cq_event(channel, &of, &unused));
		ibv_ack_cq_events(of, 1);
	}
	reap();
}

/* Signals the main thread until it ends. */
static void *signals(void *thread)
{
	unsigned state = 7;

	while (!ended) {
		struct timespec pause = { 0, 50000 + rand_r(&state) % 400000 };

		nanosleep(&pause, NULL);
		pthread_kill(*(pthread_t *)thread, SIGUSR1);
	}
	return NULL;
}

static const struct {
	const char *name;
	void (*work)(void);
	/* The work is, or has, posts and polls; the handler is promised within posts and polls, and within others. */
	int hot, others;
} works[] = { { "post_send", post, 1, 0 }, { "poll_cq", poll_once, 1, 0 }, { "reg_mr", reg, 0, 0 },
	     { "create_qp and destroy_qp", create, 0, 0 }, { "waiting for an event", await_event, 1, 0 } },
  handlers[] = { { "destroy_qp", destroy_qp, 0, 1 }, { "dereg_mr", dereg_mr, 0, 0 }, { "destroy_cq", destroy_cq, 1, 1 },
		 { "close_device", close_device, 1, 1 } };

/* Makes what the handler has destroyed. The handler does not run meanwhile. */
static void renew(const sigset_t *set)
{
	if (victim_qp && victim_mr && victim_cq && victim_context)
		return;
	pthread_sigmask(SIG_BLOCK, set, NULL);
	if (!victim_qp)
		victim_qp = make_qp(cq);
	if (!victim_mr)
		CHECK(victim_mr = ibv_reg_mr(pd, memory, SIZE, IBV_ACCESS_LOCAL_WRITE));
	if (!victim_cq)
		CHECK(victim_cq = ibv_create_cq(context, 16, NULL, NULL, 0));
	if (!victim_context)
		CHECK(victim_context = device_open(device));
	pthread_sigmask(SIG_UNBLOCK, set, NULL);
}

static void run(const char *name, void (*work)(void), void (*call)(void))
{
	struct sigaction action = { .sa_handler = handler, .sa_flags = SA_RESTART };
	pthread_t self = pthread_self(), thread;
	sigset_t set;

	alarm(SECONDS);
	open_all();
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	in_handler = call;
	CHECK(!sigaction(SIGUSR1, &action, NULL));
	CHECK(!pthread_create(&thread, NULL, signals, &self));
	while (calls < rounds) {
		renew(&set);
		work();
	}
	ended = 1;
	CHECK(!pthread_join(thread, NULL));
	/* What was refused in the handler succeeds after it. */
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	for (time_t end = time(NULL) + SECONDS; posted > polled && time(NULL) < end;)
		reap();
	CHECK(posted == polled && !ibv_destroy_qp(pair[0]) && !ibv_destroy_qp(pair[1]));
	CHECK((!victim_qp || !ibv_destroy_qp(victim_qp)) && (!victim_mr || !ibv_dereg_mr(victim_mr)));
	CHECK((!victim_cq || !ibv_destroy_cq(victim_cq)) && (!victim_context || !ibv_close_device(victim_context)));
	CHECK(!ibv_destroy_cq(cq) && !ibv_destroy_comp_channel(channel) && !ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd));
	CHECK(!ibv_close_device(context));
	printf("%s: %d calls, %d refused\n", name, (int)calls, (int)refused);
	fflush(stdout);
	_exit(0);
}

int main(int argc, char **argv)
{
	int passed = 0, failed = 0, status, all = argc == 5 && !strcmp(argv[4], "all");

	if (argc != 4 + all)
		return 2;
	device = argv[1];
	gid_index = atoi(argv[2]);
	rounds = atoi(argv[3]);
	for (size_t i = 0; i < sizeof works / sizeof *works; i++)
		for (size_t k = 0; k < sizeof handlers / sizeof *handlers; k++) {
			char name[100];
			pid_t pid;

			if (!all && !(works[i].hot ? handlers[k].hot : handlers[k].others))
				continue;
			snprintf(name, sizeof name, "%s in a handler during %s", handlers[k].name, works[i].name);
			fflush(NULL);
			CHECK((pid = fork()) >= 0);
			if (!pid)
				run(name, works[i].work, handlers[k].work);
			CHECK(waitpid(pid, &status, 0) == pid);
			status ? failed++ : passed++;
			if (status)
				printf("%s: status %#x\n", name, status);
		}
	printf("%d passed, %d failed\n", passed, failed);
	return failed != 0;
}
