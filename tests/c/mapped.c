/* Memory under an MR that goes away while it is registered: a file that is truncated, memory that is unmapped, moved,
 * or made inaccessible. A transfer ends with an error status, or succeeds where the library has the pages locked; it
 * never ends the process. The program's own faults reach the program's own handler, before and after that.
 *
 *   mapped DEVICE GID_INDEX
 *
 * Each case runs in its own process. Prints failures and a last line "N passed, M failed". */
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

#include "fatal.h"
#include "setup.h"

enum { SIZE = 1 << 20, PAGE = 4096, SECONDS = 30, ROUNDS = 6 };

static const char *device;
static int gid_index;
static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *pair[2];
static char *plain;
static struct ibv_mr *plain_mr;

/* The program's own handler. */
static sigjmp_buf back;
static volatile sig_atomic_t expects_fault;

static void own_fault(int signal)
{
	CHECK(signal == SIGSEGV || signal == SIGBUS);
	/* A fault of the library must not come here. */
	CHECK(expects_fault);
	siglongjmp(back, signal);
}

static void set_handlers(void)
{
	CHECK(signal(SIGSEGV, own_fault) == SIG_DFL && signal(SIGBUS, own_fault) == SIG_DFL);
}

/* Accesses of the program itself that fault: each has its signal. */
static void own_faults(void)
{
	char *nothing = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *beyond;
	FILE *file = tmpfile();
	int got;

	CHECK(file && nothing != MAP_FAILED);
	beyond = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fileno(file), 0);
	CHECK(beyond != MAP_FAILED);
	expects_fault = 1;
	if (!(got = sigsetjmp(back, 1)))
		*(volatile char *)nothing = 1;
	CHECK(got == SIGSEGV);
	if (!(got = sigsetjmp(back, 1)))
		got = *(volatile char *)beyond ? 0 : 0;
	CHECK(got == SIGBUS);
	expects_fault = 0;
	munmap(nothing, PAGE);
	munmap(beyond, PAGE);
	fclose(file);
}

static void connect_qps(void)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
					 .cap = { 16, 16, 1, 1, 0 } };
	union ibv_gid gid;

	CHECK(!ibv_query_gid(context, 1, gid_index, &gid));
	for (int i = 0; i < 2; i++)
		CHECK(pair[i] = ibv_create_qp(pd, &init));
	for (int i = 0; i < 2; i++)
		CHECK(!rc_connect(pair[i], rc_attr(pair[!i]->qp_num, &gid, gid_index)));
}

static void open_all(void)
{
	CHECK(context = device_open(device));
	CHECK((pd = ibv_alloc_pd(context)) && (cq = ibv_create_cq(context, 64, NULL, NULL, 0)));
	plain = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(plain != MAP_FAILED);
	CHECK(plain_mr = ibv_reg_mr(pd, plain, SIZE,
				    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ));
}

static void post(enum ibv_wr_opcode opcode, char *local, struct ibv_mr *lmr, char *remote, struct ibv_mr *rmr)
{
	struct ibv_sge sge = { (uintptr_t)local, SIZE, lmr->lkey };
	struct ibv_send_wr *bad, wr = { .sg_list = &sge, .num_sge = 1, .opcode = opcode,
					.wr.rdma = { (uintptr_t)remote, rmr->rkey } };

	CHECK(!ibv_post_send(pair[0], &wr, &bad));
}

/* The statuses of all requests; the first that failed. */
static int statuses(int count)
{
	time_t end = time(NULL) + SECONDS;
	int first = 0, got;
	struct ibv_wc wc;

	for (int i = 0; i < count; i++) {
		while (!(got = ibv_poll_cq(cq, 1, &wc)))
			CHECK(time(NULL) < end);
		CHECK(got == 1);
		if (!first)
			first = wc.status;
	}
	return first;
}

/* How memory goes away. */
enum way { TRUNCATE, UNMAP, MOVE, PROTECT, FORK_AND_UNMAP, WAYS };

static const char *const ways[] = { "ftruncate", "munmap", "mremap", "mprotect(PROT_NONE)", "fork and munmap" };

static void go_away(enum way way, char *at, int file)
{
	char *moved;
	pid_t child;

	switch (way) {
	case TRUNCATE: CHECK(!ftruncate(file, PAGE)); break;
	case MOVE:
		moved = mremap(at, SIZE, SIZE, MREMAP_MAYMOVE | MREMAP_FIXED, at + 2 * SIZE);
		CHECK(moved == at + 2 * SIZE);
		break;
	case PROTECT: CHECK(!mprotect(at, SIZE, PROT_NONE)); break;
	case FORK_AND_UNMAP:
		CHECK((child = fork()) >= 0);
		if (!child)
			_exit(0);
		CHECK(waitpid(child, NULL, 0) == child);
		/* Fall through. */
	default: CHECK(!munmap(at, SIZE)); break;
	}
}

static enum way way;
static int demand;

/* A request after the memory has gone must fail. */
static int check_status(int status, int remote)
{
	if (status == IBV_WC_WR_FLUSH_ERR)
		return 1;
	return remote ? status == IBV_WC_REM_OP_ERR || status == IBV_WC_REM_ACCESS_ERR : status == IBV_WC_LOC_PROT_ERR;
}

/* The memory is local or remote memory of WRITEs and READs, which run while it goes away, or come later. */
static void goes_away(void)
{
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

	for (int round = 0; round < 2 * 2 * 2 * ROUNDS; round++) {
		int remote = round & 1, running = round >> 2 & 1, before, after;
		enum ibv_wr_opcode opcode = round & 2 ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
		FILE *file = tmpfile();
		/* Space for mremap. */
		char *space = mmap(NULL, 4 * SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *at;
		struct ibv_mr *mr;

		CHECK(file && !ftruncate(fileno(file), SIZE) && space != MAP_FAILED);
		at = mmap(space, SIZE, PROT_READ | PROT_WRITE, MAP_FIXED | (way == TRUNCATE ? MAP_SHARED :
			  MAP_PRIVATE | MAP_ANONYMOUS), way == TRUNCATE ? fileno(file) : -1, 0);
		CHECK(at == space);
		memset(at, 3, SIZE);
		CHECK(mr = ibv_reg_mr(pd, at, SIZE, access | (demand ? IBV_ACCESS_ON_DEMAND : 0)));
		connect_qps();
		before = running ? 8 : 1;
		for (int i = 0; i < before; i++)
			post(opcode, remote ? plain : at, remote ? plain_mr : mr, remote ? at : plain,
			     remote ? mr : plain_mr);
		if (!running)
			CHECK(statuses(1) == IBV_WC_SUCCESS);
		go_away(way, at, fileno(file));
		/* While they ran, anything but the end of the process is right. */
		if (running)
			statuses(before);
		post(opcode, remote ? plain : at, remote ? plain_mr : mr, remote ? at : plain, remote ? mr : plain_mr);
		after = statuses(1);
		if (!check_status(after, remote))
			printf("%s: %s of %s memory, %s: status %d\n", ways[way], round & 2 ? "READ" : "WRITE",
			       remote ? "remote" : "local", running ? "running" : "later", after), fflush(NULL), _exit(1);
		own_faults();
		CHECK(!ibv_destroy_qp(pair[0]) && !ibv_destroy_qp(pair[1]) && !ibv_dereg_mr(mr));
		CHECK(!munmap(space, 4 * SIZE));
		fclose(file);
	}
}

static int after_opening;

static void run(void)
{
	alarm(4 * SECONDS);
	if (!after_opening)
		set_handlers();
	open_all();
	if (after_opening)
		set_handlers();
	own_faults();
	goes_away();
	CHECK(!ibv_dereg_mr(plain_mr) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
	own_faults();
	_exit(0);
}

int main(int argc, char **argv)
{
	int passed = 0, failed = 0, status;

	if (argc != 3)
		return 2;
	device = argv[1];
	gid_index = atoi(argv[2]);
	for (way = 0; way < WAYS; way++)
		for (int i = 0; i < 4; i++) {
			pid_t pid;

			demand = i & 1;
			after_opening = i >> 1;
			fflush(NULL);
			CHECK((pid = fork()) >= 0);
			if (!pid)
				run();
			CHECK(waitpid(pid, &status, 0) == pid);
			status ? failed++ : passed++;
			if (status)
				printf("%s, %s, handlers set %s the device was opened: status %#x\n", ways[way],
				       demand ? "ODP" : "pinned", after_opening ? "after" : "before", status);
		}
	printf("%d passed, %d failed\n", passed, failed);
	return failed != 0;
}
