/* Other programs are started while a thread transfers: by vfork, by raw clone calls as vfork and as fork, by posix_spawn.
 * The transfers go on, with every byte correct. At last the process ends by exit() of another thread in their middle.
 *
 *   spawns DEVICE GID_INDEX ROUNDS
 *
 * Prints failures and a last line "N passed, M failed". */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#include "fatal.h"
#include "setup.h"

enum { SIZE = 1 << 16, SECONDS = 60, STACK = 1 << 16 };

extern char **environ;

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *pair[2];
static struct ibv_mr *mr;
static unsigned char *memory;
static atomic_int done;
static atomic_long transfers;

static void open_all(const char *device, int gid_index)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .sq_sig_all = 1, .cap = { 4, 4, 1, 1, 0 } };
	union ibv_gid gid;

	CHECK(context = device_open(device));
	CHECK((pd = ibv_alloc_pd(context)) && (cq = ibv_create_cq(context, 16, NULL, NULL, 0)));
	CHECK(memory = aligned_alloc(4096, 2 * SIZE));
	CHECK(mr = ibv_reg_mr(pd, memory, 2 * SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
	CHECK(!ibv_query_gid(context, 1, gid_index, &gid));
	init.send_cq = init.recv_cq = cq;
	for (int i = 0; i < 2; i++)
		CHECK(pair[i] = ibv_create_qp(pd, &init));
	for (int i = 0; i < 2; i++)
		CHECK(!rc_connect(pair[i], rc_attr(pair[!i]->qp_num, &gid, gid_index)));
}

/* WRITEs until `done`, each compared. */
static void *transfer(void *unused)
{
	struct ibv_sge sge = { (uintptr_t)memory, SIZE, mr->lkey };
	struct ibv_send_wr *bad, wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
					.wr.rdma = { (uintptr_t)memory + SIZE, mr->rkey } };
	time_t end = time(NULL) + SECONDS;
	struct ibv_wc wc;
	int got;

	for (unsigned char byte = 1; !done; byte++) {
		memset(memory, byte, SIZE);
		CHECK(!ibv_post_send(pair[0], &wr, &bad));
		while (!(got = ibv_poll_cq(cq, 1, &wc)))
			CHECK(time(NULL) < end);
		CHECK(got == 1 && wc.status == IBV_WC_SUCCESS && !memcmp(memory, memory + SIZE, SIZE));
		transfers++;
	}
	return unused;
}

/* With the status 7. */
static char *const program[] = { "sh", "-c", "exit 7", NULL };

static int start(void *unused)
{
	(void)unused;
	execve("/bin/sh", program, environ);
	_exit(1);
}

static pid_t by_vfork(void)
{
	pid_t pid = vfork();

	if (!pid) {
		execve("/bin/sh", program, environ);
		_exit(1);
	}
	return pid;
}

static pid_t by_clone_as_vfork(void)
{
	static char stack[STACK] __attribute__((aligned(64)));

	return clone(start, stack + STACK, CLONE_VM | CLONE_VFORK | SIGCHLD, NULL);
}

/* The child has its own memory; no handler of pthread_atfork runs. */
static pid_t by_raw_clone_as_fork(void)
{
	pid_t pid = syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);

	if (!pid)
		start(NULL);
	return pid;
}

static pid_t by_posix_spawn(void)
{
	pid_t pid;

	return posix_spawn(&pid, "/bin/sh", NULL, NULL, program, environ) ? -1 : pid;
}

static const struct {
	const char *name;
	pid_t (*start)(void);
} ways[] = { { "vfork", by_vfork }, { "clone as vfork", by_clone_as_vfork },
	     { "a raw clone as fork", by_raw_clone_as_fork }, { "posix_spawn", by_posix_spawn } };

static void *ends(void *unused)
{
	long before = transfers;

	while (transfers < before + 20)
		usleep(100);
	exit(5);
	return unused;
}

int main(int argc, char **argv)
{
	int passed = 0, failed = 0, rounds = argc > 3 ? atoi(argv[3]) : 10, status;
	pthread_t thread;
	pid_t pid;

	if (argc < 3)
		return 2;
	alarm(2 * SECONDS);
	open_all(argv[1], atoi(argv[2]));
	CHECK(!pthread_create(&thread, NULL, transfer, NULL));
	for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
		for (int round = 0; round < rounds; round++) {
			long before = transfers;
			int good;

			CHECK((pid = ways[i].start()) > 0 && waitpid(pid, &status, 0) == pid);
			good = WIFEXITED(status) && WEXITSTATUS(status) == 7;
			/* The transfers have not stopped. */
			while (transfers < before + 2)
				usleep(100);
			good ? passed++ : failed++;
			if (!good)
				printf("%s: status %#x\n", ways[i].name, status);
		}
	done = 1;
	CHECK(!pthread_join(thread, NULL));
	CHECK(!ibv_destroy_qp(pair[0]) && !ibv_destroy_qp(pair[1]) && !ibv_destroy_cq(cq) && !ibv_dereg_mr(mr));
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(context));
	for (int round = 0; round < rounds; round++) {
		fflush(NULL);
		CHECK((pid = fork()) >= 0);
		if (!pid) {
			alarm(SECONDS);
			done = 0;
			open_all(argv[1], atoi(argv[2]));
			CHECK(!pthread_create(&thread, NULL, ends, NULL));
			transfer(NULL);
		}
		CHECK(waitpid(pid, &status, 0) == pid);
		WIFEXITED(status) && WEXITSTATUS(status) == 5 ? passed++ : failed++;
		if (!WIFEXITED(status) || WEXITSTATUS(status) != 5)
			printf("exit of another thread: status %#x\n", status);
	}
	printf("%d passed, %d failed\n", passed, failed);
	return failed != 0;
}
