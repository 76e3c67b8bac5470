/*
 * stream: one-way throughput of RDMA WRITE with immediate data, as in Q. Liu's and R. Russell's "A Performance Study of
 * InfiniBand Fourteen Data Rate (FDR)", on any adapter: against message size, outstanding messages, signalling period,
 * alignment, waiting or polling, and NUMA node.
 *
 * Needs only libibverbs. `weir-stream --help` has the details.
 */
#define _GNU_SOURCE
#define PROGRAM "weir-stream"
#include "stream_place.h"
#include "stream_receive.h"
#include "stream_report.h"
#include "stream_send.h"
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define CLOSED "the other side has closed the connection"

/* The last resort: a call does not return. */
static void give_up(int signal)
{
	static const char said[] = PROGRAM ": not done in time; the other side or the adapter does not respond\n";
	static const char line[] =
		"{\"error\":\"not done in time; the other side or the adapter does not respond\",\"ends\":true}\n";
	ssize_t n = write(2, said, sizeof(said) - 1);

	if (process.jobs)
		n = write(1, line, sizeof(line) - 1);
	(void)n;
	(void)signal;
	_exit(3);
}

/* No job can come after this one. */
__attribute__((noreturn)) static void leave(const char *why, int code)
{
	if (process.jobs)
		report_json_error(why, 1);
	fprintf(stderr, PROGRAM ": %s\n", why);
	exit(code);
}

/* As exchange(); each job has a line even then. */
static void meet(const void *mine, void *theirs, size_t len)
{
	if (!exchanged(mine, theirs, len))
		leave(CLOSED, 2);
}

/* NULL if there is a device as wanted. */
static const char *device_wrong(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	const char *why = list && list[0] ? NULL : "there is no RDMA device (under Weir: weir run -- weir-stream ...)";

	if (!why && opt.device) {
		why = wrong("there is no RDMA device %s", opt.device);
		for (int i = 0; list[i]; i++)
			if (!strcmp(ibv_get_device_name(list[i]), opt.device))
				why = NULL;
	}
	if (list)
		ibv_free_device_list(list);
	return why;
}

static void open_device(void)
{
	struct { uint32_t version, token; } mine = { VERSION, process.token }, theirs;

	exchange(&mine, &theirs, sizeof(mine));
	if (mine.version != theirs.version)
		die("the other side has another version");
	/* One of an earlier run may still wait on this port. */
	if (mine.token != theirs.token)
		die("the other side belongs to another run: --token differs");
	exchange_failure(device_wrong());
	/* The rig's own buffers are not used. */
	opt.max = PAGE;
	rig_open();
}

/* This side cannot do the job, or the job failed. The client's caller gets the error as output of the job, if it wants
 * JSON lines. */
static int job_failed(const char *why, int code)
{
	if (process.jobs)
		report_json_error(why, 0);
	else
		fprintf(stderr, PROGRAM ": %s\n", why);
	return code;
}

static int far_failed(const char *why, int code)
{
	return job_failed(wrong("the %s: %.300s", client ? "server" : "client", why), code);
}

/* Makes everything for a run, on both sides. Returns 0, or the exit code of the failure. */
static int set_up(void)
{
	struct hello mine, theirs;
	const char *why = client ? NULL : job_wrong();

	if (!why)
		why = place_enter();
	if (!why && rig.port.max_msg_sz && job.size > rig.port.max_msg_sz)
		why = wrong("--size: messages of %s have %u bytes at most", ibv_get_device_name(rig.context->device),
			    rig.port.max_msg_sz);
	if (!why)
		why = memory_open();
	if (!why)
		why = queues_open();
	mine = hello(why);
	meet(&mine, &theirs, sizeof(mine));
	theirs.why[TEXT - 1] = 0;
	if (!mine.why[0] && !theirs.why[0]) {
		const char *failure = stream_connect(&mine, &theirs);

		snprintf(mine.why, TEXT, "%s", failure ? failure : "");
		meet(mine.why, theirs.why, TEXT);
		theirs.why[TEXT - 1] = 0;
	}
	if (mine.why[0])
		return job_failed(mine.why, 2);
	if (theirs.why[0])
		return far_failed(theirs.why, 2);
	return 0;
}

/* Runs what is set up, and reports it. Returns the exit code. */
static int measure(void)
{
	struct outcome mine = { 0 }, theirs;

	memset(&run, 0, sizeof(run));
	run.deadline = now() + job.seconds;
	client ? send_stream() : receive_stream();
	if (run.state == STOPPED)
		look_for_cause();
	if (stream.channel)
		events_taken();
	mine.state = run.state;
	memcpy(mine.why, run.why, TEXT);
	mine.used = run.used;
	mine.sleeps = run.sleeps;
	mine.messages = run.messages - run.first;
	mine.checked = run.checked;
	mine.wrong = run.wrong;
	/* The reason of this side says more than that the other has gone. */
	if (!exchanged(&mine, &theirs, sizeof(mine))) {
		int known = mine.state != GOOD && mine.state != STOPPED && mine.why[0];

		leave(known ? mine.why : CLOSED, known && mine.state == LATE ? 3 : 2);
	}
	theirs.why[TEXT - 1] = 0;
	/* A side that stopped because of the other does not know the cause. */
	if (mine.state != GOOD && (mine.state != STOPPED || theirs.state == GOOD || theirs.state == STOPPED))
		return job_failed(mine.why, mine.state == LATE ? 3 : 2);
	if (theirs.state != GOOD)
		return far_failed(theirs.why, theirs.state == LATE ? 3 : 2);
	if (mine.messages != theirs.messages)
		return job_failed("the sides have not counted the same number of messages", 2);
	if (client && (process.json || process.jobs))
		report_json(&mine, &theirs);
	else if (client)
		report_text(&mine, &theirs);
	return mine.wrong + theirs.wrong != 0;
}

static int one_job(void)
{
	int code;

	alarm(job.seconds + 15);
	code = set_up();
	if (!code)
		code = measure();
	stream_close();
	place_leave();
	alarm(0);
	return code;
}

/* Sends the job to the server and does it. */
static int client_job(const char *why)
{
	struct job theirs;

	if (!why)
		why = job_wrong();
	if (why)
		return job_failed(why, 2);
	alarm(job.seconds + 15);
	meet(&job, &theirs, sizeof(job));
	return one_job();
}

/* Returns 1 if bytes of a job were wrong. */
static int client_jobs(void)
{
	const struct job defaults = job;
	size_t room = 0;
	char *line = NULL;
	int bad = 0;

	while (getline(&line, &room, stdin) != -1) {
		job = defaults;
		bad |= client_job(parse_line(line)) == 1;
	}
	free(line);
	job = defaults;
	return bad;
}

static int be_client(void)
{
	struct job theirs;
	int code;

	alarm(opt.seconds + 15);
	side_connect(opt.host, opt.port);
	alarm(opt.seconds + 15);
	open_device();
	alarm(0);
	code = process.jobs ? client_jobs() : client_job(NULL);
	job.end = 1 + code;
	exchange(&job, &theirs, sizeof(job));
	return code;
}

/* Does the jobs of one client. Returns the client's exit code. */
static int serve(void)
{
	struct job mine = job;

	alarm(opt.seconds + 15);
	open_device();
	alarm(0);
	for (;;) {
		exchange(&mine, &job, sizeof(job));
		if (job.end)
			return job.end - 1;
		job.sender.cpus[sizeof(job.sender.cpus) - 1] = 0;
		job.receiver.cpus[sizeof(job.receiver.cpus) - 1] = 0;
		one_job();
	}
}

/* Whether the client says something: one that only looks whether the port is open does not. */
static int speaks(void)
{
	struct pollfd fd = { .fd = side, .events = POLLIN };
	char first;

	return poll(&fd, 1, 10000) == 1 && recv(side, &first, 1, MSG_PEEK) == 1;
}

/* Waits for the next client. With --with-input, the end of standard input ends the server meanwhile. */
static void next_client(int listener)
{
	struct pollfd fds[] = { { .fd = listener, .events = POLLIN }, { .fd = 0, .events = POLLIN } };

	for (;;) {
		char unused[256];

		if (poll(fds, process.with_input ? 2 : 1, -1) < 0 && errno != EINTR)
			die("poll: %s", strerror(errno));
		if (process.with_input && fds[1].revents && read(0, unused, sizeof(unused)) <= 0)
			die("standard input ended before a client came");
		if (!(fds[0].revents & POLLIN))
			continue;
		side = accept(listener, NULL, NULL);
		/* A client that is gone already, or no descriptor, is no reason to end. */
		if (side < 0) {
			usleep(100000);
			continue;
		}
		side_opened();
		if (speaks())
			return;
		close(side);
	}
}

/* A process for each client, one after another: a failure ends only that one. */
static void serve_all(int listener)
{
	for (;;) {
		pid_t child, parent = getpid();

		next_client(listener);
		child = fork();
		if (child < 0)
			die("fork: %s", strerror(errno));
		if (!child) {
			/* The child ends with its parent. */
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			if (getppid() != parent)
				_exit(2);
			close(listener);
			exit(serve());
		}
		close(side);
		waitpid(child, NULL, 0);
	}
}

int main(int argc, char **argv)
{
	int code, listener;

	opt.port = "18516";
	opt.seconds = 60;
	parse_command(argc, argv);
	signal(SIGALRM, give_up);
	if (opt.host) {
		code = be_client();
	} else {
		listener = side_listen(opt.port);
		if (process.stay)
			serve_all(listener);
		next_client(listener);
		close(listener);
		code = serve();
	}
	if (stream.memory)
		munmap(stream.memory, stream.room);
	rig_close();
	return code;
}
