// What the descriptor of an event channel does: cancellation, signals, O_NONBLOCK, and a fork after rdma_listen.
// Usage: event_channel ADDRESS
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAUSE = 50000 }; /* us: the time for a thread to begin to wait */

static struct sockaddr_in address = { .sin_family = AF_INET };

static void check(int right, const char *what)
{
	if (!right)
		err(1, "%s", what);
}

static struct rdma_event_channel *channel(void)
{
	struct rdma_event_channel *made = rdma_create_event_channel();
	check(made != NULL, "rdma_create_event_channel");
	return made;
}

static struct rdma_cm_id *id_of(struct rdma_event_channel *events)
{
	struct rdma_cm_id *id;
	check(!rdma_create_id(events, &id, NULL, RDMA_PS_TCP), "rdma_create_id");
	return id;
}

/* Raises RDMA_CM_EVENT_ADDR_RESOLVED. */
static void resolve(struct rdma_cm_id *id)
{
	struct sockaddr_in to = address;
	if (!to.sin_port)
		to.sin_port = htons(9);
	check(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 1000), "rdma_resolve_addr");
}

/* Takes the next event, which must be of that kind; returns its id. */
static struct rdma_cm_id *expect(struct rdma_event_channel *events, enum rdma_cm_event_type kind)
{
	struct rdma_cm_event *event;
	check(!rdma_get_cm_event(events, &event), "rdma_get_cm_event");
	if (event->event != kind)
		errx(1, "%s instead of %s", rdma_event_str(event->event), rdma_event_str(kind));
	struct rdma_cm_id *id = event->id;
	rdma_ack_cm_event(event);
	return id;
}

static void *take(void *events)
{
	struct rdma_cm_event *event;
	if (rdma_get_cm_event(events, &event))
		return (void *)(long)errno;
	rdma_ack_cm_event(event);
	return NULL;
}

/* Starts a thread that waits for an event. */
static pthread_t waiter(struct rdma_event_channel *events)
{
	pthread_t thread;
	check(!pthread_create(&thread, NULL, take, events), "pthread_create");
	usleep(PAUSE);
	return thread;
}

static void *result(pthread_t thread)
{
	void *ended;
	check(!pthread_join(thread, &ended), "pthread_join");
	return ended;
}

/* A thread is cancelled while it waits, and the channel works on. */
static void cancelled(void)
{
	struct rdma_event_channel *events = channel();
	struct rdma_cm_id *id = id_of(events);
	pthread_t thread = waiter(events);
	pthread_cancel(thread);
	check(result(thread) == PTHREAD_CANCELED, "the thread is cancelled");
	resolve(id);
	expect(events, RDMA_CM_EVENT_ADDR_RESOLVED);
	rdma_destroy_id(id);
	rdma_destroy_event_channel(events);
}

static void nothing(int signal)
{
	(void)signal;
}

/* A signal ends the wait with EINTR, unless its handler restarts calls. */
static void interrupted(int flags)
{
	struct sigaction action = { .sa_handler = nothing, .sa_flags = flags };
	sigaction(SIGUSR1, &action, NULL);
	struct rdma_event_channel *events = channel();
	struct rdma_cm_id *id = id_of(events);
	pthread_t thread = waiter(events);
	void *ended;
	if (flags & SA_RESTART) {
		pthread_kill(thread, SIGUSR1);
		usleep(PAUSE);
		resolve(id);
		ended = result(thread);
	} else {
		/* A signal is lost that comes before the thread has begun to wait. */
		do {
			pthread_kill(thread, SIGUSR1);
			usleep(PAUSE);
		} while (pthread_tryjoin_np(thread, &ended) == EBUSY);
	}
	long want = flags & SA_RESTART ? 0 : EINTR;
	check((long)ended == want, "a signal during rdma_get_cm_event");
	rdma_destroy_id(id);
	rdma_destroy_event_channel(events);
}

/* With O_NONBLOCK there is EAGAIN instead of a wait; poll tells of the event. */
static void nonblocking(void)
{
	struct rdma_event_channel *events = channel();
	struct rdma_cm_id *id = id_of(events);
	struct rdma_cm_event *event;
	struct pollfd ready = { .fd = events->fd, .events = POLLIN };
	int flags = fcntl(events->fd, F_GETFL);
	check(!fcntl(events->fd, F_SETFL, flags | O_NONBLOCK), "F_SETFL");
	check(rdma_get_cm_event(events, &event) == -1 && errno == EAGAIN, "EAGAIN");
	check(poll(&ready, 1, 0) == 0, "nothing to read");
	resolve(id);
	check(poll(&ready, 1, 5000) == 1, "an event to read");
	expect(events, RDMA_CM_EVENT_ADDR_RESOLVED);
	check(rdma_get_cm_event(events, &event) == -1 && errno == EAGAIN, "EAGAIN again");
	check(poll(&ready, 1, 0) == 0, "nothing to read any more");
	rdma_destroy_id(id);
	rdma_destroy_event_channel(events);
}

static void queue_pair(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attributes = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	check(!rdma_create_qp(id, NULL, &attributes), "rdma_create_qp");
}

/* A connection of the process with its listener. */
static void connected(struct rdma_event_channel *listening)
{
	struct rdma_event_channel *events = channel();
	struct rdma_cm_id *active = id_of(events);
	struct rdma_conn_param parameters = { .retry_count = 7, .rnr_retry_count = 7 };
	resolve(active);
	expect(events, RDMA_CM_EVENT_ADDR_RESOLVED);
	check(!rdma_resolve_route(active, 1000), "rdma_resolve_route");
	expect(events, RDMA_CM_EVENT_ROUTE_RESOLVED);
	queue_pair(active);
	check(!rdma_connect(active, &parameters), "rdma_connect");
	struct rdma_cm_id *passive = expect(listening, RDMA_CM_EVENT_CONNECT_REQUEST);
	queue_pair(passive);
	check(!rdma_accept(passive, &parameters), "rdma_accept");
	expect(events, RDMA_CM_EVENT_ESTABLISHED);
	expect(listening, RDMA_CM_EVENT_ESTABLISHED);
	check(!rdma_disconnect(active), "rdma_disconnect");
	expect(listening, RDMA_CM_EVENT_DISCONNECTED);
	check(!rdma_disconnect(passive), "rdma_disconnect of the passive side");
	expect(events, RDMA_CM_EVENT_DISCONNECTED);
	rdma_destroy_qp(active);
	rdma_destroy_qp(passive);
	rdma_destroy_id(active);
	rdma_destroy_id(passive);
	rdma_destroy_event_channel(events);
}

/* A child cannot use its parent's listener, and does not disturb it: neither while it lives nor when it ends. */
static void forked(void)
{
	struct rdma_event_channel *listening = channel();
	struct rdma_cm_id *listener = id_of(listening);
	check(!rdma_bind_addr(listener, (struct sockaddr *)&address), "rdma_bind_addr");
	check(!rdma_listen(listener, 8), "rdma_listen");
	address.sin_port = rdma_get_src_port(listener);
	for (int ends = 0; ends < 3; ends++) {
		int hold[2], status;
		check(!pipe(hold), "pipe");
		pid_t child = fork();
		check(child >= 0, "fork");
		if (child == 0) {
			struct rdma_cm_event *event;
			struct rdma_cm_id *id;
			char end;
			close(hold[1]);
			if (rdma_get_cm_event(listening, &event) != -1 || errno != EACCES)
				err(1, "the parent's events");
			if (rdma_create_id(listening, &id, NULL, RDMA_PS_TCP) != -1 || errno != EACCES)
				err(1, "the parent's channel");
			if (read(hold[0], &end, 1) < 0)
				err(1, "read");
			if (ends == 1)
				close(listening->fd);
			if (ends == 2)
				exit(0);
			_exit(0);
		}
		close(hold[0]);
		connected(listening);
		close(hold[1]);
		check(waitpid(child, &status, 0) == child && status == 0, "the child");
		connected(listening);
	}
	rdma_destroy_id(listener);
	rdma_destroy_event_channel(listening);
}

int main(int argc, char **argv)
{
	if (argc != 2 || inet_pton(AF_INET, argv[1], &address.sin_addr) != 1)
		errx(2, "usage: event_channel ADDRESS");
	cancelled();
	interrupted(0);
	interrupted(SA_RESTART);
	nonblocking();
	forked();
	puts("ok");
}
