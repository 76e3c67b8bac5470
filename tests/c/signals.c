/* Handlers of SIGSEGV and SIGBUS that a program sets before and after it opens a device, and threads that block these
 * signals: the adapter's own handler must have no visible effect.
 *
 *   signals DEVICE GID_INDEX
 *
 * Each case runs in its own process. Prints failures and a last line "N passed, M failed". */
#define _GNU_SOURCE
#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "fatal.h"
#include "setup.h"

enum { SIZE = 1 << 16, SECONDS = 20, STACK = 1 << 16 };

static const char *device;
static int gid_index;

/* The device with a PD and a CQ for all QPs. */
static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;

static void open_device(void)
{
	CHECK(context = device_open(device));
	CHECK(pd = ibv_alloc_pd(context));
	CHECK(cq = ibv_create_cq(context, 64, NULL, NULL, 0));
}

static void make_pair(struct ibv_qp *pair[2])
{
	union ibv_gid gid;
	CHECK(!ibv_query_gid(context, 1, gid_index, &gid));
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_init_attr init = {
			.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
			.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		};
		CHECK(pair[i] = ibv_create_qp(pd, &init));
	}
	for (int i = 0; i < 2; i++)
		CHECK(!rc_connect(pair[i], rc_attr(pair[!i]->qp_num, &gid, gid_index)));
}

static void *map(void)
{
	void *at = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(at != MAP_FAILED);
	memset(at, 1, SIZE);
	return at;
}

/* Two WRITEs of 256 bytes from `from` to `to`. A raw system call unmaps either of them before the second WRITE.
 * Returns the status of the second WRITE. */
static int write_with_a_hole(int access, int in_source)
{
	struct ibv_qp *pair[2];
	char *from = map(), *to = map();
	struct ibv_mr *source = ibv_reg_mr(pd, from, SIZE, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_mr *target = access & IBV_ACCESS_ON_DEMAND ? ibv_reg_mr(pd, NULL, SIZE_MAX, access)
							      : ibv_reg_mr(pd, to, SIZE, access);
	CHECK(source && target);
	make_pair(pair);
	struct ibv_sge sge = { .addr = (uintptr_t)from, .length = 256, .lkey = source->lkey };
	struct ibv_send_wr *bad, wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
					.wr.rdma = { .remote_addr = (uintptr_t)to, .rkey = target->rkey } };
	struct ibv_wc wc;
	time_t end = time(NULL) + SECONDS;

	/* The first WRITE brings the pages into the tables. */
	for (int round = 0; round < 2; round++) {
		if (round)
			CHECK(!syscall(SYS_munmap, in_source ? from : to, SIZE));
		CHECK(!ibv_post_send(pair[0], &wr, &bad));
		int got;
		while ((got = ibv_poll_cq(cq, 1, &wc)) == 0)
			CHECK(time(NULL) < end);
		CHECK(got == 1 && (round || wc.status == IBV_WC_SUCCESS));
	}
	CHECK(!ibv_destroy_qp(pair[0]) && !ibv_destroy_qp(pair[1]));
	CHECK(!ibv_dereg_mr(source) && !ibv_dereg_mr(target));
	if (in_source)
		munmap(to, SIZE);
	else
		munmap(from, SIZE);
	return wc.status;
}

static void holes(void)
{
	const int remote = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;

	for (int i = 0; i < 5; i++) {
		CHECK(write_with_a_hole(remote, 1) == IBV_WC_LOC_PROT_ERR);
		CHECK(write_with_a_hole(remote, 0) != IBV_WC_SUCCESS);
		CHECK(write_with_a_hole(remote | IBV_ACCESS_ON_DEMAND, 0) != IBV_WC_SUCCESS);
	}
}

/* Values that the handlers have recorded. */
static sigjmp_buf back;
static volatile sig_atomic_t calls;
static volatile uintptr_t address, stack;
static sigset_t mask;

static void three(int signal, siginfo_t *info, void *unused)
{
	int here;
	(void)unused;
	CHECK(signal == SIGSEGV || signal == SIGBUS);
	calls++;
	address = (uintptr_t)info->si_addr;
	stack = (uintptr_t)&here;
	pthread_sigmask(SIG_BLOCK, NULL, &mask);
	siglongjmp(back, 1);
}

static void one(int signal)
{
	three(signal, &(siginfo_t){ .si_addr = NULL }, NULL);
}

static void returns(int signal)
{
	(void)signal;
	calls++;
}

static char *nothing;

/* Accesses inaccessible memory; the program's handler jumps back. */
static void fault(void)
{
	int before = calls;
	if (!sigsetjmp(back, 1))
		*(volatile char *)nothing = 1;
	CHECK(calls == before + 1);
}

static int after_opening;

/* Sets a handler before or after the device is opened, depending on `after_opening`. */
static void set(struct sigaction *action)
{
	struct sigaction before, after;
	if (after_opening)
		open_device();
	CHECK(!sigaction(SIGSEGV, action, &before));
	CHECK(before.sa_handler == SIG_DFL);
	if (!after_opening)
		open_device();
	CHECK(nothing = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
	CHECK(!sigaction(SIGSEGV, NULL, &after));
	/* A handler that was set before opening is called by the adapter's, but sigaction must report it as the
	 * program set it. */
	CHECK(after.sa_handler == action->sa_handler);
	CHECK((after.sa_flags & ~0x04000000) == (action->sa_flags & ~0x04000000)); /* SA_RESTORER is the C library's */
}

static void masks(void)
{
	struct sigaction action = { .sa_sigaction = three, .sa_flags = SA_SIGINFO };
	sigset_t now;
	sigaddset(&action.sa_mask, SIGUSR1);
	sigaddset(&action.sa_mask, SIGWINCH);
	set(&action);
	for (int i = 0; i < 3; i++) {
		fault();
		CHECK(address == (uintptr_t)nothing);
		CHECK(sigismember(&mask, SIGUSR1) && sigismember(&mask, SIGWINCH) && sigismember(&mask, SIGSEGV));
		CHECK(!sigismember(&mask, SIGUSR2) && !sigismember(&mask, SIGBUS));
		pthread_sigmask(SIG_BLOCK, NULL, &now);
		CHECK(!sigismember(&now, SIGUSR1) && !sigismember(&now, SIGSEGV));
	}
	holes();
	fault();
}

static void nodefer(void)
{
	struct sigaction action = { .sa_sigaction = three, .sa_flags = SA_SIGINFO | SA_NODEFER };
	set(&action);
	fault();
	CHECK(!sigismember(&mask, SIGSEGV));
}

static void plain(void)
{
	struct sigaction action = { .sa_handler = one };
	set(&action);
	fault();
	CHECK(sigismember(&mask, SIGSEGV));
	holes();
}

static void stacks(void)
{
	static char other[STACK];
	stack_t alternate = { .ss_sp = other, .ss_size = STACK };
	struct sigaction action = { .sa_sigaction = three, .sa_flags = SA_SIGINFO | SA_ONSTACK };
	CHECK(!sigaltstack(&alternate, NULL));
	set(&action);
	fault();
	CHECK(stack - (uintptr_t)other < STACK);
	holes();
	action.sa_flags = SA_SIGINFO;
	CHECK(!sigaction(SIGSEGV, &action, NULL));
	if (after_opening) {
		fault();
		CHECK(stack - (uintptr_t)other >= STACK);
	}
}

static void off_the_stack(void)
{
	static char other[STACK];
	stack_t alternate = { .ss_sp = other, .ss_size = STACK };
	struct sigaction action = { .sa_sigaction = three, .sa_flags = SA_SIGINFO };
	CHECK(!sigaltstack(&alternate, NULL));
	set(&action);
	fault();
	CHECK(stack - (uintptr_t)other >= STACK);
}

/* Runs `work` in a child and returns the child's wait status. */
static int ending(void (*work)(void))
{
	int status;
	fflush(NULL);
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		alarm(SECONDS);
		work();
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid);
	return status;
}

static void touch(void)
{
	*(volatile char *)nothing = 1;
}

static void send_it(void)
{
	raise(SIGSEGV);
}

static int killed_by_it(int status)
{
	return WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV;
}

static void once(void)
{
	struct sigaction now, action = { .sa_sigaction = three, .sa_flags = SA_SIGINFO | SA_RESETHAND };
	set(&action);
	fault();
	CHECK(!sigaction(SIGSEGV, NULL, &now) && now.sa_handler == SIG_DFL);
	CHECK(killed_by_it(ending(touch)));
	holes();
}

static void sent(void)
{
	struct sigaction action = { .sa_handler = returns };
	set(&action);
	send_it();
	CHECK(calls == 1);
	action.sa_handler = SIG_IGN;
	CHECK(!sigaction(SIGSEGV, &action, NULL));
	send_it();
	CHECK(calls == 1);
	CHECK(killed_by_it(ending(touch)));
	action.sa_handler = SIG_DFL;
	CHECK(!sigaction(SIGSEGV, &action, NULL));
	CHECK(killed_by_it(ending(send_it)));
	CHECK(killed_by_it(ending(touch)));
	holes();
}

static void by_signal(void)
{
	struct sigaction action = { .sa_handler = returns };
	set(&action);
	CHECK(signal(SIGSEGV, one) == returns);
	fault();
	CHECK(sigismember(&mask, SIGSEGV));
	CHECK(signal(SIGSEGV, SIG_DFL) == one);
	CHECK(killed_by_it(ending(touch)));
	holes();
}

/* Without a handler of the program. */
static void none(void)
{
	if (after_opening)
		return;
	open_device();
	CHECK(nothing = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
	CHECK(killed_by_it(ending(touch)));
	CHECK(killed_by_it(ending(send_it)));
	holes();
}

static void change_mask(int raw, int how, uint64_t bits)
{
	sigset_t set;
	sigemptyset(&set);
	memcpy(&set, &bits, sizeof bits);
	if (raw)
		CHECK(!syscall(SYS_rt_sigprocmask, how, &bits, NULL, sizeof bits));
	else
		CHECK(!pthread_sigmask(how, &set, NULL));
}

static const uint64_t FAULTS = 1ull << (SIGSEGV - 1) | 1ull << (SIGBUS - 1);

static void blocked(int raw)
{
	sigset_t now;
	open_device();
	for (int i = 0; i < 2; i++) {
		/* A raw call must come before the thread's first use of the adapter, which does not see a later one. */
		change_mask(raw, SIG_BLOCK, FAULTS);
		holes();
		pthread_sigmask(SIG_BLOCK, NULL, &now);
		CHECK(sigismember(&now, SIGSEGV) && sigismember(&now, SIGBUS));
		change_mask(raw, SIG_UNBLOCK, FAULTS);
		holes();
		pthread_sigmask(SIG_BLOCK, NULL, &now);
		CHECK(!sigismember(&now, SIGSEGV) && !sigismember(&now, SIGBUS));
	}
}

static void *in_thread(void *unused)
{
	(void)unused;
	holes();
	return NULL;
}

/* A thread that inherits a mask with blocked faults, and a thread that blocks them after it has used the adapter. */
static void blocked_by_call(void)
{
	pthread_t thread;
	if (after_opening) {
		open_device();
		holes();
		change_mask(0, SIG_BLOCK, FAULTS);
		CHECK(!pthread_create(&thread, NULL, in_thread, NULL));
		CHECK(!pthread_join(thread, NULL));
		holes();
		/* siglongjmp restores a mask that no call has set since. */
		if (!sigsetjmp(back, 1)) {
			change_mask(0, SIG_UNBLOCK, FAULTS);
			holes();
			siglongjmp(back, 1);
		}
		holes();
		return;
	}
	blocked(0);
}

static void blocked_by_system_call(void)
{
	blocked(1);
}

static const struct {
	const char *name;
	void (*work)(void);
} cases[] = {
	{ "a mask", masks }, { "SA_NODEFER", nodefer }, { "a handler without SA_SIGINFO", plain },
	{ "SA_ONSTACK", stacks }, { "no SA_ONSTACK", off_the_stack }, { "SA_RESETHAND", once },
	{ "a signal sent by raise", sent }, { "signal()", by_signal }, { "no handler", none },
	{ "blocked signals", blocked_by_call }, { "signals blocked by system calls", blocked_by_system_call },
};

int main(int argc, char **argv)
{
	int passed = 0, failed = 0;
	if (argc != 3)
		return 2;
	device = argv[1];
	gid_index = atoi(argv[2]);
	for (after_opening = 0; after_opening < 2; after_opening++)
		for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
			int status = ending(cases[i].work);
			if (!status) {
				passed++;
				continue;
			}
			failed++;
			printf("%s, set %s the device was opened: status %#x\n", cases[i].name,
			       after_opening ? "after" : "before", status);
		}
	printf("%d passed, %d failed\n", passed, failed);
	return failed != 0;
}
