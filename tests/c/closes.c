/* The program closes descriptors that it has not opened, and opens files that get their numbers.
 *
 *   closes DEVICE WAY
 *
 * range, from, loop, dup   close_range, closefrom, close of every number, dup2 onto every number: as in a program that
 *                          becomes a daemon. Transfers go on.
 * waits, polls             system calls, which Weir does not see. The device fails; the program waits for that, or polls.
 *
 * In every way the files stay as they are, in a forked child and after the device is closed too. */
#define _GNU_SOURCE
#include "check.h"
#include "setup.h"
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define FILES 64
#define SIZE 100000
/* Numbers that the ways without ranges try. */
#define NUMBERS 400
/* Milliseconds, for events that must come. */
#define LONG 60000

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static unsigned char memory[2][SIZE];
static int files[FILES];

static int set_up(const char *device)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC,
					 .cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1 } };
	union ibv_gid gid;
	int index;

	context = device_open(device);
	if (!check(context != NULL, "cannot open %s", device))
		return 0;
	index = best_gid(context, 1);
	ibv_query_gid(context, 1, index, &gid);
	pd = ibv_alloc_pd(context);
	channel = ibv_create_comp_channel(context);
	cq = ibv_create_cq(context, 16, NULL, channel, 0);
	mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	init.send_cq = init.recv_cq = cq;
	qp = ibv_create_qp(pd, &init);
	return check(pd && channel && cq && mr && qp && !rc_connect(qp, rc_attr(qp->qp_num, &gid, index)), "set-up");
}

static int post(int round)
{
	struct ibv_sge sge = { (uintptr_t)memory[0], SIZE, mr->lkey };
	struct ibv_send_wr *bad, wr = { .wr_id = round, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
					.send_flags = IBV_SEND_SIGNALED,
					.wr.rdma = { (uintptr_t)memory[1], mr->rkey } };

	memset(memory[0], round + 1, SIZE);
	return ibv_post_send(qp, &wr, &bad);
}

/* One WRITE; its completion by an event, or by polling. */
static int transfer(int round, int sleeps)
{
	struct ibv_wc wc = { .status = IBV_WC_GENERAL_ERR };
	struct ibv_cq *of;
	void *cookie;

	if (sleeps && ibv_req_notify_cq(cq, 0))
		return 0;
	if (post(round))
		return 0;
	if (sleeps) {
		struct pollfd ready = { .fd = channel->fd, .events = POLLIN };

		if (poll(&ready, 1, LONG) != 1 || ibv_get_cq_event(channel, &of, &cookie))
			return 0;
		ibv_ack_cq_events(of, 1);
	}
	while (ibv_poll_cq(cq, 1, &wc) == 0)
		;
	return wc.status == IBV_WC_SUCCESS && wc.wr_id == (unsigned)round && !memcmp(memory[0], memory[1], SIZE);
}

/* Closes everything above the standard streams. */
static void close_all(const char *way)
{
	if (!strcmp(way, "range")) {
		check(!close_range(3, ~0U, 0), "close_range");
		check(close_range(4, 3, 0) && errno == EINVAL, "close_range of nothing");
		check(close_range(3, ~0U, 1 << 20) && errno == EINVAL, "close_range with an unknown flag");
	} else if (!strcmp(way, "from")) {
		closefrom(3);
	} else if (!strcmp(way, "loop")) {
		for (int number = 3; number < NUMBERS; number++)
			close(number);
		check(close(channel->fd) && errno == EBADF, "close of a channel");
	} else if (!strcmp(way, "dup")) {
		int refused = 0, done = 0;

		for (int number = 3; number < NUMBERS; number++) {
			int result = dup2(2, number);

			refused += result < 0 && errno == EBUSY;
			done += result == number && !close(number);
		}
		check(refused > 5 && refused + done == NUMBERS - 3, "dup2: %d refused, %d done", refused, done);
	} else {
		/* The program needs one descriptor to learn that the device fails. */
		for (int number = 3; number < NUMBERS; number++)
			if (number != context->async_fd)
				syscall(SYS_close, number);
	}
}

static void files_are_as_they_were(const char *when)
{
	struct stat about;

	for (int i = 0; i < FILES; i++)
		check(!fstat(files[i], &about) && about.st_size == 0 && !lseek(files[i], 0, SEEK_CUR),
		      "file %d, number %d, %s: %ld bytes", i, files[i], when, (long)about.st_size);
}

static void a_child_has_them_too(void)
{
	int status = -1;
	pid_t child = fork();

	if (!child) {
		failed = 0;
		files_are_as_they_were("in a child");
		fflush(stdout);
		_exit(!!failed);
	}
	check(waitpid(child, &status, 0) == child && !status, "the child");
}

static void no_thread_spins(void)
{
	struct timespec before, after, second = { .tv_sec = 1 };
	double used;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
	nanosleep(&second, NULL);
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
	used = (after.tv_sec - before.tv_sec) + (after.tv_nsec - before.tv_nsec) / 1e9;
	check(used < 0.4, "%.3f s of CPU time in 1 s", used);
}

static void goes_on(void)
{
	for (int round = 0; round < 200; round++)
		if (!check(transfer(round, round % 2), "transfer %d", round))
			return;
}

static void fails(int polls)
{
	struct pollfd ready = { .fd = context->async_fd, .events = POLLIN };
	struct ibv_async_event event = { .event_type = -1 };
	struct ibv_wc wc;

	if (polls) {
		/* Refused if the device has failed already; otherwise flushed. */
		int posted = !post(0), got = 0;

		for (time_t end = time(NULL) + LONG / 1000; posted && !got && time(NULL) < end;)
			got = ibv_poll_cq(cq, 1, &wc);
		check(!posted || (got == 1 && wc.status != IBV_WC_SUCCESS), "a request ends with an error (%d)", got);
	}
	check(poll(&ready, 1, LONG) == 1 && !ibv_get_async_event(context, &event), "no event");
	check(event.event_type == IBV_EVENT_DEVICE_FATAL, "event %d", event.event_type);
	ibv_ack_async_event(&event);
	check(!ibv_create_cq(context, 1, NULL, NULL, 0) && errno == EIO, "a CQ of a failed device");
}

int main(int argc, char **argv)
{
	const char *way = argc > 2 ? argv[2] : "range";
	int raw = !strcmp(way, "waits") || !strcmp(way, "polls");

	if (!set_up(argc > 1 ? argv[1] : NULL))
		return 1;
	check(transfer(0, 1) && transfer(1, 0), "the first transfers");
	close_all(way);
	for (int i = 0; i < FILES; i++)
		files[i] = memfd_create("file", MFD_CLOEXEC);
	check(files[FILES - 1] >= 0, "files");
	a_child_has_them_too();
	if (raw)
		fails(!strcmp(way, "polls"));
	else
		goes_on();
	no_thread_spins();
	files_are_as_they_were("after transfers");
	a_child_has_them_too();
	check(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq) && !ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd), "destroy");
	check(!ibv_destroy_comp_channel(channel), "destroy the channel");
	check(!ibv_close_device(context), "close the device");
	files_are_as_they_were("after the device is closed");
	a_child_has_them_too();
	printf("%d passed, %d failed\n", passed, failed);
	return !!failed;
}
