/* Interposes the C library's cancellation points that a verbs library may use, and checks their callers. For every
 * library a definition in the program precedes that of the C library; the program must be linked with -rdynamic. */
#ifndef CANCEL_POINTS_H
#define CANCEL_POINTS_H

/* This thread is inside a verb: 2 if that verb may be cancelled while it waits for an event. */
static __thread int in_verb;
static int violations;
static const char *violation = "none";

#define VERB(call) do { in_verb = 1; call; in_verb = 0; } while (0)
#define WAITING_VERB(call) do { in_verb = 2; call; in_verb = 0; } while (0)

static void check_point(const char *name)
{
	int state, ignored;

	if (!in_verb || (in_verb == 2 && !strcmp(name, "read")))
		return;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
	if (state == PTHREAD_CANCEL_ENABLE && !__atomic_fetch_add(&violations, 1, __ATOMIC_RELAXED))
		violation = name;
	pthread_setcancelstate(state, &ignored);
}

#define POINT(type, name, parameters, arguments)                          \
	type name parameters                                              \
	{                                                                 \
		static type(*next) parameters;                            \
		check_point(#name);                                       \
		if (!next)                                                \
			next = (type(*) parameters)dlsym(RTLD_NEXT, #name); \
		return next arguments;                                    \
	}

struct epoll_event;

POINT(ssize_t, read, (int fd, void *to, size_t len), (fd, to, len))
POINT(ssize_t, write, (int fd, const void *from, size_t len), (fd, from, len))
POINT(ssize_t, writev, (int fd, const struct iovec *v, int count), (fd, v, count))
POINT(ssize_t, pread64, (int fd, void *to, size_t len, off_t at), (fd, to, len, at))
POINT(ssize_t, recv, (int fd, void *to, size_t len, int flags), (fd, to, len, flags))
POINT(ssize_t, recvmsg, (int fd, struct msghdr *message, int flags), (fd, message, flags))
POINT(ssize_t, sendmsg, (int fd, const struct msghdr *message, int flags), (fd, message, flags))
POINT(int, recvmmsg, (int fd, struct mmsghdr *v, unsigned n, int flags, struct timespec *t), (fd, v, n, flags, t))
POINT(int, sendmmsg, (int fd, struct mmsghdr *v, unsigned n, int flags), (fd, v, n, flags))
POINT(int, poll, (struct pollfd *fds, nfds_t count, int ms), (fds, count, ms))
POINT(int, ppoll, (struct pollfd *fds, nfds_t count, const struct timespec *t, const sigset_t *m), (fds, count, t, m))
POINT(int, epoll_wait, (int fd, struct epoll_event *events, int count, int ms), (fd, events, count, ms))
POINT(int, close, (int fd), (fd))
POINT(int, open, (const char *path, int flags, ...), (path, flags, 0600))
POINT(int, open64, (const char *path, int flags, ...), (path, flags, 0600))
POINT(int, openat64, (int at, const char *path, int flags, ...), (at, path, flags, 0600))
POINT(int, clock_nanosleep, (clockid_t clock, int flags, const struct timespec *t, struct timespec *left),
      (clock, flags, t, left))
POINT(ssize_t, getrandom, (void *to, size_t len, unsigned flags), (to, len, flags))

#endif
