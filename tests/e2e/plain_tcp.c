// A program for TCP that knows nothing of RDMA: a server echoes, a client compares. librspreload.so takes its sockets.
// A forking server has a child that serves, as inetd.
// Usage: plain_tcp server ADDRESS PORT | forking ADDRESS PORT | client ADDRESS PORT
#include <arpa/inet.h>
#include <err.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MESSAGES = 200, MOST = 300000 };

static unsigned char sent[MOST], echoed[MOST];

static int next(int listener)
{
	int peer = accept(listener, NULL, NULL);
	if (peer < 0)
		err(1, "accept");
	return peer;
}

static void serve(int peer)
{
	for (;;) {
		struct pollfd ready = { .fd = peer, .events = POLLIN };
		if (poll(&ready, 1, -1) < 0)
			err(1, "poll");
		ssize_t count = read(peer, echoed, MOST);
		if (count < 0)
			err(1, "read");
		if (count == 0)
			break;
		for (ssize_t done = 0; done < count;) {
			ssize_t more = send(peer, echoed + done, count - done, 0);
			if (more < 0)
				err(1, "send");
			done += more;
		}
	}
	close(peer);
}

static void serve_by_child(int listener)
{
	int peer = next(listener), status;
	pid_t child = fork();
	if (child < 0)
		err(1, "fork");
	if (child == 0) {
		serve(peer);
		exit(0);
	}
	close(peer);
	if (waitpid(child, &status, 0) != child || status)
		errx(1, "the child ends with status %#x", status);
}

/* At most 32 KiB are under way: neither side waits for the other to make room. */
static void converse(int peer)
{
	for (int message = 0; message < MESSAGES; message++) {
		size_t len = 1 + (size_t)message * 7919 % MOST;
		for (size_t at = 0; at < len; at++)
			sent[at] = (unsigned char)(at * 31 + at / 256 + message);
		for (size_t at = 0; at < len;) {
			size_t part = len - at < 32768 ? len - at : 32768;
			if (write(peer, sent + at, part) != (ssize_t)part)
				err(1, "write");
			for (size_t end = at + part; at < end;) {
				ssize_t count = recv(peer, echoed + at, end - at, 0);
				if (count <= 0)
					err(1, "recv");
				at += count;
			}
		}
		if (memcmp(sent, echoed, len))
			errx(1, "message %d differs", message);
	}
	shutdown(peer, SHUT_RDWR);
}

int main(int argc, char **argv)
{
	if (argc != 4)
		errx(2, "usage: plain_tcp server|forking|client ADDRESS PORT");
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(atoi(argv[3])) };
	inet_pton(AF_INET, argv[2], &address.sin_addr);
	int stream = socket(AF_INET, SOCK_STREAM, 0), on = 1;
	if (stream < 0)
		err(1, "socket");
	if (strcmp(argv[1], "client")) {
		setsockopt(stream, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
		if (bind(stream, (struct sockaddr *)&address, sizeof(address)) || listen(stream, 1))
			err(1, "bind");
		if (!strcmp(argv[1], "forking"))
			serve_by_child(stream);
		else
			serve(next(stream));
	} else {
		if (connect(stream, (struct sockaddr *)&address, sizeof(address)))
			err(1, "connect");
		converse(stream);
	}
	close(stream);
	puts("ok");
}
