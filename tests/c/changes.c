/*
 * Which changes of ODP memory the adapter is notified of: every call that unmaps, moves, empties or protects
 * memory must remove its pages from the adapter's table. There are no transfers: the program prefetches pages and
 * counts their invalidations.
 *
 *   changes [-d DEVICE]     WEIR_RUN_DIR is the directory of the counters
 *
 * CHANGES_SEEN=functions: only interposed functions notify the adapter (no userfaultfd);
 * CHANGES_SEEN=events: only userfaultfd notifies it (the library was opened later, and interposes nothing).
 */
#define _GNU_SOURCE
#include "invalidate_counters.h"

#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "setup.h"

#define PAGE 4096l
#define PAGES 8l
#define LEN (PAGES * PAGE)

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static long failures, seen_pages;
static int functions = 1, events = 1;

#define CHECK(condition, ...)                                \
	do {                                                 \
		if (!(condition)) {                          \
			failures++;                          \
			fprintf(stderr, "%s: ", __func__);   \
			fprintf(stderr, __VA_ARGS__);        \
			fprintf(stderr, " (errno %d)\n", errno); \
		}                                            \
	} while (0)

/* Registers ODP memory and prefetches its pages. */
static void register_odp(void *at, long len)
{
	mr = ibv_reg_mr(pd, at, len, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_ON_DEMAND);
	if (!mr) {
		fprintf(stderr, "ibv_reg_mr: %s\n", strerror(errno));
		exit(1);
	}
	struct ibv_sge sge = { (uintptr_t)at, len, mr->lkey };
	int error = ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_ADVISE_MR_FLAG_FLUSH, &sge, 1);
	CHECK(!error, "prefetch: %s", strerror(error));
}

/* Checks that `pages` pages were invalidated since the last call, if the adapter is notified of this change. */
static void invalidated(const char *what, long pages, int is_notified)
{
	long wanted = seen_pages + (is_notified ? pages : 0), now = counter("num_invalidation_pages", wanted);

	CHECK(now == wanted, "%s: %ld pages invalidated, expected %ld", what, now - seen_pages, wanted - seen_pages);
	seen_pages = now;
	ibv_dereg_mr(mr);
}

static uint8_t *pages(int flags, int fd)
{
	/* With inaccessible pages before and after, so that the kernel does not merge it with its neighbours. */
	uint8_t *room = mmap(NULL, 3 * LEN, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (fd < 0)
		flags |= MAP_ANONYMOUS;
	return mmap(room + LEN, LEN, PROT_READ | PROT_WRITE, flags | MAP_FIXED, fd, 0);
}

static uint8_t *anonymous(void)
{
	return pages(MAP_PRIVATE, -1);
}

static void mapped(void)
{
	uint8_t *at;

	register_odp(at = anonymous(), LEN);
	CHECK(!munmap(at, 3 * PAGE), "munmap");
	invalidated("munmap", 3, functions || events);

	register_odp(at = anonymous(), LEN);
	CHECK(mmap(at + PAGE, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at + PAGE, "mmap");
	invalidated("mmap over it", 1, functions || events);

	register_odp(at = anonymous(), LEN);
	CHECK(mremap(at, LEN, 2 * LEN, MREMAP_MAYMOVE) != MAP_FAILED, "mremap");
	invalidated("mremap to another address", PAGES, functions || events);

	register_odp(at = anonymous(), LEN);
	CHECK(mremap(at, LEN, 5 * PAGE, 0) == at, "mremap");
	invalidated("mremap, shorter", 3, functions || events);

	register_odp(at = anonymous(), LEN);
	uint8_t *other = anonymous();
	CHECK(mremap(other, 2 * PAGE, 2 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, at) == at, "mremap");
	invalidated("mremap over it", 2, functions || events);

	register_odp(at = anonymous(), LEN);
	CHECK(!mprotect(at, 2 * PAGE, PROT_READ), "mprotect");
	invalidated("mprotect", 2, functions);

	int key = pkey_alloc(0, 0);
	register_odp(at = anonymous(), LEN);
	CHECK(key < 0 || !pkey_mprotect(at, 2 * PAGE, PROT_READ, key), "pkey_mprotect");
	invalidated("pkey_mprotect", 2, functions && key >= 0);
}

static void advised(void)
{
	static const struct { int advice, by_event; const char *name; } list[] = {
		{ MADV_DONTNEED, 1, "DONTNEED" }, { MADV_FREE, 1, "FREE" }, { MADV_COLD, 0, "COLD" },
		{ MADV_PAGEOUT, 0, "PAGEOUT" }, { MADV_REMOVE, 1, "REMOVE" },
	};

	for (size_t i = 0; i < sizeof(list) / sizeof(*list); i++) {
		int file = list[i].advice == MADV_REMOVE ? memfd_create("memory", MFD_CLOEXEC) : -1;
		if (file >= 0)
			CHECK(!ftruncate(file, LEN), "ftruncate");
		uint8_t *at = pages(file < 0 ? MAP_PRIVATE : MAP_SHARED, file);
		register_odp(at, LEN);
		CHECK(!madvise(at + PAGE, 2 * PAGE, list[i].advice), "madvise %s", list[i].name);
		invalidated(list[i].name, 2, functions || (events && list[i].by_event));
	}
	uint8_t *at = anonymous();
	register_odp(at, LEN);
	CHECK(!madvise(at, LEN, MADV_WILLNEED) && !madvise(at, LEN, MADV_RANDOM), "madvise");
	invalidated("advice that changes nothing", 0, 1);
}

static void shared(void)
{
	int id = shmget(IPC_PRIVATE, LEN, 0600);
	uint8_t *at = shmat(id, NULL, 0);

	shmctl(id, IPC_RMID, NULL);
	register_odp(at, LEN);
	CHECK(!shmdt(at), "shmdt");
	invalidated("shmdt", PAGES, functions);
}

/* The end of the heap, unless another allocation moves it meanwhile. */
static void lowered(void)
{
	uint8_t *old = sbrk(0), *at = sbrk(LEN + PAGE);

	at = (uint8_t *)(((uintptr_t)at + PAGE - 1) & -PAGE);
	register_odp(at, LEN);
	if (sbrk(0) == old + LEN + PAGE) {
		CHECK(sbrk(-(old + LEN + PAGE - at - 4 * PAGE)) != (void *)-1, "sbrk");
		invalidated("sbrk", 4, functions || events);
	} else {
		ibv_dereg_mr(mr);
	}

	old = sbrk(0);
	at = sbrk(LEN + PAGE);
	at = (uint8_t *)(((uintptr_t)at + PAGE - 1) & -PAGE);
	register_odp(at, LEN);
	if (sbrk(0) == old + LEN + PAGE) {
		CHECK(!brk(at + 2 * PAGE), "brk");
		invalidated("brk", 6, functions || events);
	} else {
		ibv_dereg_mr(mr);
	}
}

/* Changes that no interposed function can see. */
static void raw(void)
{
	uint8_t *at;

	register_odp(at = anonymous(), LEN);
	CHECK(!syscall(SYS_munmap, at, 3 * PAGE), "munmap");
	invalidated("raw munmap", 3, events);
	/* New memory at the address of unmapped memory: it is watched again when it is used. */
	register_odp(at = anonymous(), LEN);
	CHECK(!syscall(SYS_munmap, at, LEN), "munmap");
	struct ibv_mr *kept = mr;
	mr = NULL;
	/* The kernel queues the event before munmap returns, but the adapter handles it shortly afterwards. */
	usleep(20000);
	CHECK((long)syscall(SYS_mmap, at, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0l) ==
		      (long)at, "mmap");
	struct ibv_sge sge = { (uintptr_t)at, LEN, kept->lkey };
	CHECK(!ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_ADVISE_MR_FLAG_FLUSH, &sge, 1), "prefetch");
	CHECK(!syscall(SYS_madvise, at, 5 * PAGE, MADV_DONTNEED), "madvise");
	mr = kept;
	invalidated("raw munmap, and DONTNEED of the next mapping", PAGES + 5, events);

	/* More than the heap is likely to have free, so malloc creates a mapping. */
	uint8_t *block = malloc(2048 * LEN);
	register_odp((uint8_t *)(((uintptr_t)block + PAGE - 1) & -PAGE), LEN);
	free(block);
	invalidated("free", PAGES, events);
}

/* errno must be that of the call itself: unchanged on success, set on failure. */
static void errors(void)
{
	uint8_t *at = anonymous();

	register_odp(at, LEN);
	errno = 77;
	CHECK(!mprotect(at, PAGE, PROT_READ) && errno == 77, "errno of mprotect");
	CHECK(munmap(at + 1, PAGE) == -1 && errno == EINVAL, "errno of munmap");
	errno = 77;
	CHECK(!munmap(at, PAGE) && errno == 77, "errno of munmap");
	CHECK(mremap(at, PAGE, 2 * PAGE, 0) == MAP_FAILED && errno == EFAULT, "errno of mremap");
	CHECK(madvise(at + PAGE, PAGE, 9999) == -1 && errno == EINVAL, "errno of madvise");
	CHECK(shmdt(at) == -1 && errno == EINVAL, "errno of shmdt");
	CHECK(mmap(at + 1, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED &&
		      errno == EINVAL, "errno of mmap");
	CHECK(sbrk(-(1l << 60)) == (void *)-1 && errno == ENOMEM, "errno of sbrk");
	CHECK(ioctl(-1, UFFDIO_REGISTER, &(struct uffdio_register){ { 0, 0 }, 0, 0 }) == -1 && errno == EBADF,
	      "errno of ioctl");
	ibv_dereg_mr(mr);
	seen_pages = counter("num_invalidation_pages", -1);
}

/* A userfaultfd of the program on ODP memory must get the registration, its faults and its events. */
static void own_userfaultfd(void)
{
	struct uffdio_api api = { UFFD_API, UFFD_FEATURE_EVENT_UNMAP, 0 };
	int fd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
	uint8_t *at = anonymous();
	struct uffd_msg message;

	if (fd < 0 || ioctl(fd, UFFDIO_API, &api))
		return;
	register_odp(at, LEN);
	struct uffdio_register all = { { (uintptr_t)at, LEN }, UFFDIO_REGISTER_MODE_MISSING, 0 };
	int taken = !ioctl(fd, UFFDIO_REGISTER, &all);
	/* Without an interposed ioctl the first userfaultfd keeps the memory. */
	CHECK(taken || !functions, "the program's own userfaultfd");
	if (taken) {
		CHECK(!syscall(SYS_madvise, at, PAGE, MADV_DONTNEED), "madvise");
		struct uffdio_zeropage zero = { { (uintptr_t)at, PAGE }, 0, 0 };
		CHECK(!ioctl(fd, UFFDIO_ZEROPAGE, &zero) && zero.zeropage == PAGE && !at[0], "its pages");
		pid_t child = fork();
		if (!child)
			_exit(syscall(SYS_munmap, at, LEN));
		int status;
		CHECK(waitpid(child, &status, 0) == child && !status, "a child of a program with userfaultfd");
		struct uffdio_range range = { (uintptr_t)at, LEN };
		CHECK(read(fd, &message, sizeof(message)) == -1 && errno == EAGAIN, "an event of Weir's userfaultfd");
		CHECK(!ioctl(fd, UFFDIO_UNREGISTER, &range), "unregister");
	}
	close(fd);
	CHECK(!munmap(at, LEN), "munmap");
	ibv_dereg_mr(mr);
	seen_pages = counter("num_invalidation_pages", -1);
}

static uint8_t *handled;
static volatile sig_atomic_t handler_calls;

static void handler(int signal)
{
	(void)signal;
	mprotect(handled, PAGE, PROT_READ | PROT_WRITE);
	handler_calls++;
}

static void *interrupt(void *thread)
{
	/* Pending signals of one number merge into one, so it sends until the handler has run often enough. */
	while (handler_calls < 1000) {
		pthread_kill(*(pthread_t *)thread, SIGUSR1);
		usleep(50);
	}
	return NULL;
}

/* A signal handler changes ODP memory while the interrupted thread does the same. */
static void interrupted(void)
{
	struct sigaction action = { .sa_handler = handler };
	pthread_t self = pthread_self(), other;
	long calls = 0;

	handled = anonymous();
	register_odp(handled, LEN);
	sigaction(SIGUSR1, &action, NULL);
	pthread_create(&other, NULL, interrupt, &self);
	while (handler_calls < 1000) {
		calls++;
		CHECK(!mprotect(handled + PAGE, PAGE, PROT_READ | PROT_WRITE), "mprotect");
		CHECK(!madvise(handled, 2 * PAGE, MADV_DONTNEED), "madvise");
	}
	pthread_join(other, NULL);
	CHECK(calls > 0, "no call");
	ibv_dereg_mr(mr);
	seen_pages = counter("num_invalidation_pages", -1);
}

/* A child of a raw fork, without the C library's handlers, must not wait for threads that do not exist in it. */
static void forked(void)
{
	uint8_t *at = anonymous();
	int status = -1;

	register_odp(at, LEN);
	for (int i = 0; i < 200; i++) {
		pid_t child = syscall(SYS_fork);

		if (!child) {
			alarm(20);
			_exit(munmap(at, PAGE) || mprotect(at + PAGE, PAGE, PROT_READ) || madvise(at, LEN, MADV_DONTNEED) != -1);
		}
		CHECK(waitpid(child, &status, 0) == child && !status, "child %d: status %x", i, status);
		if (status)
			break;
	}
	invalidated("calls of children", 0, 1);
}

int changes(int argc, char **argv)
{
	const char *wanted = argc == 3 && !strcmp(argv[1], "-d") ? argv[2] : NULL, *ways = getenv("CHANGES_SEEN");

	if (ways) {
		functions = !!strstr(ways, "functions");
		events = !!strstr(ways, "events");
	}
	context = device_open(wanted);
	if (!context || !(pd = ibv_alloc_pd(context)) || !getenv("WEIR_RUN_DIR")) {
		fprintf(stderr, "no device, or no WEIR_RUN_DIR: %s\n", strerror(errno));
		return 1;
	}
	/* Counters are published more often while there is an on-demand region. */
	static uint8_t always[PAGE];
	if (!ibv_reg_mr(pd, always, PAGE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ON_DEMAND)) {
		fprintf(stderr, "no on-demand region: %s\n", strerror(errno));
		return 1;
	}
	mapped();
	advised();
	shared();
	raw();
	if (functions)
		lowered();
	errors();
	own_userfaultfd();
	interrupted();
	forked();
	printf("changes of ODP memory: %ld wrong\n", failures);
	return !!failures;
}

#ifndef CHANGES_LIBRARY
int main(int argc, char **argv)
{
	return changes(argc, argv);
}
#endif
