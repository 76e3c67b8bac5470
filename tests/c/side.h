/* The TCP side channel between the two sides, and the counts of checks and bytes. */
#ifndef SIDE_H
#define SIDE_H

#ifndef PROGRAM
#define PROGRAM "verify"
#endif

#include <errno.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static struct {
	const char *device, *host, *port, *cases;
	int gid, ib_port, count, seconds, verbose, lossy, xrc, demand, mtu, unfenced;
	uint64_t seed;
	size_t max;
} opt = { .port = "18515", .gid = -1, .ib_port = 1, .count = 300, .seconds = 10, .seed = 1, .max = 1 << 20 };

static struct tally {
	uint64_t passed, failed, bytes, wrong;
} tally;

static int side = -1;
static int client;

__attribute__((noreturn, format(printf, 1, 2))) static inline void die(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	fprintf(stderr, PROGRAM ": ");
	vfprintf(stderr, format, args);
	fprintf(stderr, "\n");
	va_end(args);
	exit(2);
}

/* Counts one check of this side and prints it if it fails. */
__attribute__((format(printf, 2, 3))) static inline int check(int good, const char *format, ...)
{
	va_list args;

	good ? tally.passed++ : tally.failed++;
	if (!good || opt.verbose) {
		printf("%s %s: ", client ? "client" : "server", good ? "ok" : "FAILED");
		va_start(args, format);
		vprintf(format, args);
		va_end(args);
		printf("\n");
	}
	return good;
}

static inline struct addrinfo *side_address(const char *host, const char *port)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = host ? 0 : AI_PASSIVE }, *found;
	int error;

	hints.ai_family = host ? AF_UNSPEC : AF_INET6;
	error = getaddrinfo(host, port, &hints, &found);
	if (error)
		die("%s:%s: %s", host ? host : "*", port, gai_strerror(error));
	return found;
}

static inline int side_listen(const char *port)
{
	struct addrinfo *found = side_address(NULL, port);
	/* An IPv6 socket accepts IPv4 too; without IPv6 an IPv4 socket is used. */
	int one = 1, listener = socket(AF_INET6, SOCK_STREAM, 0);

	if (listener < 0 || setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) ||
	    bind(listener, found->ai_addr, found->ai_addrlen)) {
		struct sockaddr_in any = { .sin_family = AF_INET, .sin_port = htons(atoi(port)) };

		if (listener >= 0)
			close(listener);
		listener = socket(AF_INET, SOCK_STREAM, 0);
		setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
		if (bind(listener, (struct sockaddr *)&any, sizeof(any)))
			die("port %s: %s", port, strerror(errno));
	}
	freeaddrinfo(found);
	if (listen(listener, 1))
		die("listen: %s", strerror(errno));
	return listener;
}

/* Small messages leave at once, and a host that has gone is noticed within half a minute. */
static inline void side_opened(void)
{
	int one = 1, idle = 10, interval = 5, count = 4;

	setsockopt(side, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	setsockopt(side, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
	setsockopt(side, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
	setsockopt(side, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
	setsockopt(side, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
}

static inline void side_accept(int listener)
{
	side = accept(listener, NULL, NULL);
	if (side < 0)
		die("accept: %s", strerror(errno));
	side_opened();
}

static inline void side_connect(const char *host, const char *port)
{
	struct addrinfo *found = side_address(host, port);

	client = 1;
	/* The server may not listen yet. */
	for (int tries = 0; side < 0 && tries < 100; tries++) {
		for (struct addrinfo *a = found; side < 0 && a; a = a->ai_next) {
			side = socket(a->ai_family, SOCK_STREAM, 0);
			if (side >= 0 && connect(side, a->ai_addr, a->ai_addrlen)) {
				close(side);
				side = -1;
			}
		}
		if (side < 0)
			usleep(100000);
	}
	freeaddrinfo(found);
	if (side < 0)
		die("cannot connect to %s:%s", host, port);
	side_opened();
}

static inline void side_open(const char *host, const char *port)
{
	int listener;

	if (host) {
		side_connect(host, port);
		return;
	}
	listener = side_listen(port);
	side_accept(listener);
	close(listener);
}

/* Both sides send and receive `len` bytes, which must fit into a socket's buffer. Returns 0 if the other side has closed
 * the connection. */
static inline int exchanged(const void *mine, void *theirs, size_t len)
{
	size_t got = 0;

	if (send(side, mine, len, MSG_NOSIGNAL) != (ssize_t)len)
		return 0;
	while (got < len) {
		ssize_t n = recv(side, (char *)theirs + got, len - got, 0);

		if (n <= 0)
			return 0;
		got += n;
	}
	return 1;
}

static inline void exchange(const void *mine, void *theirs, size_t len)
{
	if (!exchanged(mine, theirs, len))
		die("the other side has closed the connection");
}

/* Both sides end if one of them cannot continue; each prints the reason. */
static inline void exchange_failure(const char *why)
{
	char mine[400] = "", theirs[400];

	if (why)
		snprintf(mine, sizeof(mine), "%s", why);
	exchange(mine, theirs, sizeof(mine));
	theirs[sizeof(theirs) - 1] = 0;
	if (why)
		die("%s", why);
	if (theirs[0])
		die("the %s: %s", client ? "server" : "client", theirs);
}

static inline void barrier(void)
{
	char mine = 0, theirs;

	exchange(&mine, &theirs, 1);
}

static inline double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

/* Random numbers (SplitMix64): the same on both sides if both draw the same number of them. */
static uint64_t rng;

static inline uint64_t mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
	x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
	return x ^ (x >> 31);
}

static inline uint64_t draw(uint64_t below)
{
	return mix(rng++) % below;
}

#endif
