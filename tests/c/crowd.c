/*
 * crowd: many processes at once on one host, on any adapter. Each opens a device, connects a QP to that of its partner
 * and exchanges one message with it.
 *
 *   crowd [options] COUNT       COUNT processes, an even number
 *
 *   -d DEVICE   the first one found         -g INDEX   GID index: the best one found
 *   -t SECONDS  time limit of all: 60
 *
 * Prints one line of JSON: how many processes succeeded; seconds from the start of the first process until the last one
 * had its device and its QP, until the last one had its message, and until the last one had ended; the memory of an
 * average process while all are connected, in bytes (PSS: a page that several processes share counts in parts; private:
 * pages of its own). The exit code is 0 if all succeeded, 1 if not, 2 if it could not run.
 */
#include "crowd_member.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

enum { MOST = 100000 };

static const char *device;
static int gid_index = -1, seconds = 60;
static char **self;

static struct {
	int started, reported, good, ended;
	double begun, opened, exchanged;
	/* Bytes of all processes. */
	double pss, private;
	/* Processes that succeeded, and are counted. */
	int counted;
} crowd;

__attribute__((noreturn)) static void die(const char *what)
{
	fprintf(stderr, "crowd: %s: %s\n", what, strerror(errno));
	exit(2);
}

/* A copy of a descriptor above those that a member gets, closed in members. */
static int high(int fd)
{
	int copy = fcntl(fd, F_DUPFD_CLOEXEC, DESCRIPTORS);

	if (copy < 0)
		die("descriptors");
	close(fd);
	return copy;
}

static void pipe_high(int ends[2])
{
	if (pipe(ends))
		die("pipe");
	ends[0] = high(ends[0]);
	ends[1] = high(ends[1]);
}

/* Starts this program again as a member: a new program image, as separate jobs have it. */
static void start_member(int partner, int reports, int end)
{
	pid_t parent = getpid(), pid = fork();

	if (pid < 0)
		die("fork");
	if (pid) {
		crowd.started++;
		return;
	}
	if (prctl(PR_SET_PDEATHSIG, SIGKILL) || getppid() != parent)
		_exit(3);
	alarm(seconds);
	if (dup2(partner, PARTNER) < 0 || dup2(reports, REPORT) < 0 || dup2(end, END) < 0)
		_exit(3);
	setenv("CROWD_MEMBER", "1", 1);
	execv("/proc/self/exe", self);
	_exit(3);
}

static void start_pair(int reports, int end)
{
	int sockets[2];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets))
		die("socketpair");
	for (int i = 0; i < 2; i++)
		sockets[i] = high(sockets[i]);
	for (int i = 0; i < 2; i++)
		start_member(sockets[i], reports, end);
	for (int i = 0; i < 2; i++)
		close(sockets[i]);
}

/* Adds a process's memory to the sums. */
static void count_memory(pid_t pid)
{
	char path[64], line[256], name[64];
	double kib;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/smaps_rollup", pid);
	if (!(file = fopen(path, "re")))
		return;
	while (fgets(line, sizeof(line), file)) {
		if (sscanf(line, "%63[^:]: %lf kB", name, &kib) != 2)
			continue;
		if (!strcmp(name, "Pss")) {
			crowd.pss += kib * 1024;
			crowd.counted++;
		} else if (!strncmp(name, "Private_", 8) && strcmp(name, "Private_Hugetlb")) {
			crowd.private += kib * 1024;
		}
	}
	fclose(file);
}

/* Notes that processes have ended. */
static void reap(int options)
{
	int status;
	pid_t pid;

	while (crowd.ended < crowd.started && (pid = waitpid(-1, &status, options)) > 0) {
		crowd.ended++;
		if (status && WIFSIGNALED(status))
			fprintf(stderr, "crowd: process %d was ended by signal %d\n", pid, WTERMSIG(status));
		else if (status && WEXITSTATUS(status) > 1)
			fprintf(stderr, "crowd: process %d ended with code %d\n", pid, WEXITSTATUS(status));
	}
}

/* Reads reports until each process has sent one or has ended. Members end at their time limit. */
static void collect(int reports, pid_t *members)
{
	struct report report;
	ssize_t n;

	/* The end of the pipe comes when no member has it open: a member that ends without a report does not count. */
	while (crowd.reported < crowd.started && (n = read(reports, &report, sizeof(report)))) {
		if (n < 0 && errno == EINTR)
			continue;
		if (n != sizeof(report))
			die("reports");
		crowd.reported++;
		if (!report.good) {
			fprintf(stderr, "crowd: process %d: %s\n", report.pid, report.why);
			continue;
		}
		members[crowd.good++] = report.pid;
		if (report.opened > crowd.opened)
			crowd.opened = report.opened;
		if (report.exchanged > crowd.exchanged)
			crowd.exchanged = report.exchanged;
	}
}

static void run(int count)
{
	pid_t *members = calloc(count, sizeof(*members));
	int reports[2], end[2];

	if (!members)
		die("memory");
	pipe_high(reports);
	pipe_high(end);
	crowd.begun = now();
	for (int i = 0; i < count; i += 2)
		start_pair(reports[1], end[0]);
	close(reports[1]);
	close(end[0]);
	collect(reports[0], members);
	for (int i = 0; i < crowd.good; i++)
		count_memory(members[i]);
	close(end[1]);
	reap(0);
	free(members);
}

int main(int argc, char **argv)
{
	int c, count;

	self = argv;
	while ((c = getopt(argc, argv, "d:g:t:")) != -1) {
		switch (c) {
		case 'd': device = optarg; break;
		case 'g': gid_index = atoi(optarg); break;
		case 't': seconds = atoi(optarg); break;
		default: return 2;
		}
	}
	if (getenv("CROWD_MEMBER"))
		return member_run(device, gid_index);
	count = optind + 1 == argc ? atoi(argv[optind]) : 0;
	if (count < 2 || count % 2 || count > MOST || seconds < 1) {
		fprintf(stderr, "usage: see the comment at the top of tests/c/crowd.c\n");
		return 2;
	}
	run(count);
	printf("{\"processes\": %d, \"succeeded\": %d, \"opened\": %.3f, \"exchanged\": %.3f, \"ended\": %.3f, "
	       "\"counted\": %d, \"pss\": %.0f, \"private\": %.0f}\n",
	       count, crowd.good, crowd.good ? crowd.opened - crowd.begun : 0, crowd.good ? crowd.exchanged - crowd.begun : 0,
	       now() - crowd.begun, crowd.counted, crowd.counted ? crowd.pss / crowd.counted : 0,
	       crowd.counted ? crowd.private / crowd.counted : 0);
	return crowd.good == count ? 0 : 1;
}
