/*
 * A process ends as soon as it has received a message; the send of its peer must still succeed.
 *
 * usage: ending DEVICE GID_INDEX
 * Each case runs a receiver and a sender process. The cases combine every way to wait for a message with every way to
 * end, without earlier traffic and after HABIT messages that the receiver answers at once. After those the adapter
 * delays its ACKs so that they leave with the next answer. At last, a sender takes its QP to ERROR when it knows that the
 * receiver has the message, without a poll in between: its send has succeeded. On success prints "ok" as its last line
 * and exits with status 0.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../c/fatal.h"
#include "../c/setup.h"

enum { SIZE = 4096, WRITTEN = 1024, LEN = 64, HABIT = 20, DEPTH = 64, ROUNDS = 3, ERRORS = 60 };

/* How the receiver waits. */
enum wait { POLLS, SLEEPS, TWO_THREADS, MEMORY, WAITS };
static const char *const wait_names[] = { "a poll", "an event", "two threads", "memory" };

static const char *device;
static int gid_index;
static int to_peer;
static struct ibv_context *context;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static volatile uint8_t *memory;

struct info { uint32_t qpn, rkey; uint64_t addr; union ibv_gid gid; };
static struct info far;

static void end_by_underscore_exit(void) { _exit(0); }
static void end_by_big_exit(void) { _Exit(0); }
static void end_by_quick_exit(void) { quick_exit(0); }
static void end_by_exit(void) { exit(0); }
static void end_by_execl(void) { execl("/bin/true", "true", "an", "argument", (char *)NULL); }
static void end_by_execlp(void) { execlp("true", "true", (char *)NULL); }

static void end_by_execle(void)
{
	static char *none[] = { NULL };
	execle("/bin/true", "true", (char *)NULL, none);
}

static void end_by_execve(void)
{
	static char *arguments[] = { "true", NULL };
	execve("/bin/true", arguments, arguments + 1);
}

static void end_by_execvp(void)
{
	static char *arguments[] = { "true", NULL };
	execvp("true", arguments);
}

static void on_signal(int number)
{
	(void)number;
	_exit(0);
}

static void end_in_a_handler(void)
{
	signal(SIGUSR1, on_signal);
	raise(SIGUSR1);
}

static void end_by_sigkill(void) { kill(getpid(), SIGKILL); }
static void end_by_raw_call(void) { syscall(SYS_exit_group, 0); }

/* `interposed`: Weir interposes this way to end, and sends a delayed ACK first. */
static const struct end { const char *name; void (*end)(void); int interposed; } ends[] = {
	{ "_exit", end_by_underscore_exit, 1 }, { "_Exit", end_by_big_exit, 1 },
	{ "quick_exit", end_by_quick_exit, 1 }, { "exit", end_by_exit, 1 },
	{ "execl", end_by_execl, 1 },		{ "execlp", end_by_execlp, 1 },
	{ "execle", end_by_execle, 1 },		{ "execve", end_by_execve, 1 },
	{ "execvp", end_by_execvp, 1 },		{ "_exit in a signal handler", end_in_a_handler, 1 },
	{ "SIGKILL", end_by_sigkill, 0 },	{ "exit_group by a raw system call", end_by_raw_call, 0 },
};

static void exchange(const struct info *mine, struct info *theirs)
{
	CHECK(write(to_peer, mine, sizeof(*mine)) == sizeof(*mine));
	CHECK(read(to_peer, theirs, sizeof(*theirs)) == sizeof(*theirs));
}

/* Waits until both processes have called it. */
static void barrier(void)
{
	struct info nothing = { 0 };
	exchange(&nothing, &nothing);
}

static void connect_qp(void)
{
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp_attr attr;
	struct ibv_pd *pd;
	struct info mine;

	CHECK((context = device_open(device)) && (pd = ibv_alloc_pd(context)));
	CHECK(channel = ibv_create_comp_channel(context));
	CHECK(cq = ibv_create_cq(context, 4 * DEPTH, NULL, channel, 0));
	init.send_cq = init.recv_cq = cq;
	CHECK(qp = ibv_create_qp(pd, &init));
	CHECK(memory = aligned_alloc(4096, SIZE));
	memset((void *)memory, 0, SIZE);
	CHECK(mr = ibv_reg_mr(pd, (void *)memory, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
	mine = (struct info){ .qpn = qp->qp_num, .rkey = mr->rkey, .addr = (uintptr_t)memory };
	CHECK(!ibv_query_gid(context, 1, gid_index, &mine.gid));
	exchange(&mine, &far);
	attr = rc_attr(far.qpn, &far.gid, gid_index);
	/* Three tries of at least 537 ms each: the receiver may be off its core for a while. */
	attr.timeout = 17;
	attr.retry_cnt = 2;
	alarm(20);
	CHECK(!rc_connect(qp, attr));
}

static void post_recv(void)
{
	struct ibv_sge sge = { (uintptr_t)memory, LEN, mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
	CHECK(!ibv_post_recv(qp, &wr, &bad));
}

static void post(enum ibv_wr_opcode opcode)
{
	struct ibv_sge sge = { (uintptr_t)memory + SIZE / 2, LEN, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = opcode }, *bad;

	wr.wr.rdma.remote_addr = far.addr + WRITTEN;
	wr.wr.rdma.rkey = far.rkey;
	memory[SIZE / 2 + LEN - 1] = 1;
	CHECK(!ibv_post_send(qp, &wr, &bad));
}

static int poll_one(struct ibv_wc *wc)
{
	int count = ibv_poll_cq(cq, 1, wc);
	CHECK(count >= 0);
	return count;
}

/* Polls until a receive completes; skips the completions of sends. */
static void message(void)
{
	struct ibv_wc wc;
	do
		while (!poll_one(&wc))
			;
	while (wc.opcode != IBV_WC_RECV || wc.status != IBV_WC_SUCCESS);
}

static void sleep_for_message(void)
{
	struct ibv_cq *which;
	void *cookie;
	struct ibv_wc wc;

	for (;;) {
		CHECK(!ibv_req_notify_cq(cq, 0));
		while (poll_one(&wc))
			if (wc.opcode == IBV_WC_RECV)
				return;
		CHECK(!ibv_get_cq_event(channel, &which, &cookie));
		ibv_ack_cq_events(cq, 1);
	}
}

static void *message_and_end(void *end)
{
	message();
	((const struct end *)end)->end();
	return NULL;
}

static int receive(enum wait wait, int habit, const struct end *end)
{
	pthread_t other;

	connect_qp();
	for (int i = 0; i <= habit; i++)
		post_recv();
	barrier();
	for (int i = 0; i < habit; i++) {
		message();
		post(IBV_WR_SEND);
	}
	switch (wait) {
	case POLLS: message(); break;
	case SLEEPS: sleep_for_message(); break;
	case MEMORY:
		while (!memory[WRITTEN + LEN - 1])
			sched_yield();
		break;
	default:
		CHECK(!pthread_create(&other, NULL, message_and_end, (void *)end));
		message();
	}
	end->end();
	fprintf(stderr, "%s returned (errno %d)\n", end->name, errno);
	return 1;
}

static int sender(enum wait wait, int habit)
{
	struct ibv_wc wc;
	int sent = 0;

	connect_qp();
	for (int i = 0; i < habit; i++)
		post_recv();
	barrier();
	for (int i = 0; i < habit; i++) {
		post(IBV_WR_SEND);
		/* Two completions, in any order: that of the send, and that of the receive of the answer. */
		for (int left = 2; left; left -= poll_one(&wc))
			;
	}
	/* Time for the receiver to start to sleep or to spin. */
	usleep(2000);
	post(wait == MEMORY ? IBV_WR_RDMA_WRITE : IBV_WR_SEND);
	while (!sent)
		sent = poll_one(&wc);
	if (wc.status != IBV_WC_SUCCESS)
		fprintf(stderr, "%s\n", ibv_wc_status_str(wc.status));
	return wc.status != IBV_WC_SUCCESS;
}

static int receive_until_told(void)
{
	connect_qp();
	for (int i = 0; i <= HABIT; i++)
		post_recv();
	barrier();
	for (int i = 0; i <= HABIT; i++) {
		message();
		barrier();
	}
	barrier();
	return 0;
}

static int send_and_fail(void)
{
	struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };
	struct ibv_wc wc;

	connect_qp();
	barrier();
	for (int i = 0; i <= HABIT; i++) {
		post(IBV_WR_SEND);
		barrier();
		if (i == HABIT)
			CHECK(!ibv_modify_qp(qp, &error, IBV_QP_STATE));
		while (!poll_one(&wc))
			;
	}
	barrier();
	return wc.status != IBV_WC_SUCCESS;
}

/* Runs a receiver and a sender process; they have `end` and the rest, or `end` is NULL, and the sender's QP fails. */
static int run_case(enum wait wait, int habit, const struct end *end)
{
	int pair[2], status, bad = 0;
	pid_t pids[2];

	CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	for (int i = 0; i < 2; i++) {
		CHECK((pids[i] = fork()) >= 0);
		if (!pids[i]) {
			to_peer = pair[i];
			if (!end)
				exit(i ? send_and_fail() : receive_until_told());
			exit(i ? sender(wait, habit) : receive(wait, habit, end));
		}
	}
	close(pair[0]);
	close(pair[1]);
	for (int i = 0; i < 2; i++) {
		CHECK(waitpid(pids[i], &status, 0) == pids[i]);
		bad |= i ? status != 0 : WIFEXITED(status) && WEXITSTATUS(status);
	}
	if (bad && !end)
		puts("a send that has arrived did not succeed, because its QP was taken to ERROR");
	else if (bad)
		printf("%s after %d messages, wait by %s: the send of the peer failed\n", end->name, habit,
		       wait_names[wait]);
	return bad;
}

int main(int argc, char **argv)
{
	int bad = 0;

	if (argc != 3)
		return 2;
	/* Without a buffer, because children would print its contents again. */
	setvbuf(stdout, NULL, _IONBF, 0);
	device = argv[1];
	gid_index = atoi(argv[2]);
	for (size_t e = 0; e < sizeof(ends) / sizeof(*ends); e++)
		for (enum wait wait = POLLS; wait < WAITS; wait++)
			for (int habit = 0; habit <= HABIT; habit += HABIT) {
				/*
				 * These ways to end lose a delayed ACK, and the ACK of a WRITE: memory may show
				 * the WRITE before its ACK leaves.
				 */
				if (!ends[e].interposed && (habit || wait == MEMORY))
					continue;
				for (int round = 0; round < ROUNDS; round++)
					bad |= run_case(wait, habit, &ends[e]);
			}
	for (int round = 0; round < ERRORS; round++)
		bad |= run_case(POLLS, 0, NULL);
	if (!bad)
		puts("ok");
	return bad;
}
