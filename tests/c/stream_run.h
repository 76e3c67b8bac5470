/* The run of a stream: what both sides have, and how they wait for completions. */
#ifndef STREAM_RUN_H
#define STREAM_RUN_H

#include "stream_rig.h"
#include <sys/resource.h>

/* How often a side looks at the clock and at the other side: once in so many polls. */
#define POLLS 1024
/* Events are acknowledged together, because it takes a lock. */
#define EVENTS 64

/* Bits of the immediate data beside the message's number: the first measured message, and the last one of a phase. */
#define FIRST (1u << 31)
#define LAST (1u << 30)
#define NUMBER (LAST - 1)

/* STOPPED: the other side has failed, and knows why. GONE: it has closed the connection. */
enum state { GOOD, FAILED, LATE, STOPPED, GONE };

struct used {
	double user, system;
};

static struct run {
	enum state state;
	char why[TEXT];
	double deadline;
	/* The other side is done, and nothing more comes from it meanwhile. */
	int far_done;
	int armed;
	uint32_t polls, events;
	/* Messages: posted and acknowledged, or received and acknowledged, since the connection began. */
	uint64_t messages, acked;
	/* Send work requests: posted, and posted before the last one that is known to be complete. */
	uint64_t posted, retired;
	/* Signalled ones that are not known to be complete, and those since the last signalled one. */
	uint32_t signalled, plain;
	/* Receives to post again. */
	uint32_t receives;
	/* Since the measurement began. */
	uint64_t sleeps, acks, checked, wrong;
	uint64_t first;
	double start, end;
	struct used used;
} run;

/* Ends the run. The first error is the cause of the others. */
__attribute__((format(printf, 2, 3))) static inline int run_failed(enum state state, const char *format, ...)
{
	va_list args;

	if (run.state == GOOD) {
		run.state = state;
		va_start(args, format);
		vsnprintf(run.why, sizeof(run.why), format, args);
		va_end(args);
	}
	return 0;
}

/* CPU time of all threads, those of the adapter too. */
static inline struct used used_now(void)
{
	struct rusage used;

	getrusage(RUSAGE_SELF, &used);
	return (struct used){ used.ru_utime.tv_sec + used.ru_utime.tv_usec * 1e-6,
			      used.ru_stime.tv_sec + used.ru_stime.tv_usec * 1e-6 };
}

static inline void measurement_begins(void)
{
	run.sleeps = run.acks = 0;
	run.first = run.messages;
	run.used = used_now();
	run.start = now();
}

static inline void measurement_ends(void)
{
	struct used used;

	run.end = now();
	used = used_now();
	run.used.user = used.user - run.used.user;
	run.used.system = used.system - run.used.system;
}

/* The other side sends its outcome when it is done. It begins with its state. */
static inline int far_side(void)
{
	uint8_t state = STOPPED;
	ssize_t n;

	if (run.far_done)
		return 1;
	n = recv(side, &state, 1, MSG_PEEK | MSG_DONTWAIT);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return 1;
	if (n <= 0)
		return run_failed(GONE, "the other side has closed the connection");
	if (state != GOOD)
		return run_failed(STOPPED, "the other side has failed");
	run.far_done = 1;
	return 1;
}

static inline int in_time(void)
{
	return now() <= run.deadline ||
	       run_failed(LATE, "not done in %u s: the other side or the adapter does not respond, or --timeout is too short",
			  job.seconds);
}

static inline void events_taken(void)
{
	if (run.events)
		ibv_ack_cq_events(stream.cq, run.events);
	run.events = 0;
}

/* Sleeps until there is an event. Returns 0 if the run has failed. */
static inline int event(void)
{
	struct pollfd fds[] = { { .fd = stream.channel->fd, .events = POLLIN },
				{ .fd = run.far_done ? -1 : side, .events = POLLIN } };
	double left = run.deadline - now();
	struct ibv_cq *cq;
	void *context;

	run.sleeps++;
	if (poll(fds, 2, left > 0 ? left * 1e3 + 1 : 0) < 0 && errno != EINTR)
		return run_failed(FAILED, "poll: %s", strerror(errno));
	/* Completions first: they may have the cause of the other side's failure. */
	if (fds[1].revents && !fds[0].revents && !far_side())
		return 0;
	if (fds[0].revents) {
		if (ibv_get_cq_event(stream.channel, &cq, &context))
			return run_failed(FAILED, "ibv_get_cq_event: %s", strerror(errno));
		run.armed = 0;
		if (++run.events == EVENTS)
			events_taken();
	}
	return in_time();
}

/* Waits for completions: their number, or 0 if the run has failed. */
static inline int completions(struct ibv_wc wc[BATCH])
{
	for (;;) {
		int n = ibv_poll_cq(stream.cq, BATCH, wc);

		if (n < 0)
			return run_failed(FAILED, "ibv_poll_cq: %d", n);
		if (++run.polls % POLLS == 0 && (!in_time() || !far_side()))
			return 0;
		if (n)
			return n;
		if (!stream.channel)
			continue;
		if (!run.armed) {
			int error = ibv_req_notify_cq(stream.cq, 0);

			if (error)
				return run_failed(FAILED, "ibv_req_notify_cq: %s", strerror(error));
			/* What has come before is polled once more. */
			run.armed = 1;
			continue;
		}
		if (!event())
			return 0;
	}
}

/* A completion with an error. If it is flushed, then the other side's request failed. */
static inline int failed_completion(const struct ibv_wc *wc)
{
	enum state state = wc->status == IBV_WC_WR_FLUSH_ERR ? STOPPED : FAILED;
	uint64_t number = wc->wr_id & ~(MESSAGE | ACK | RECEIVE);

	if (wc->wr_id & RECEIVE)
		return run_failed(state, "a receive: %s", ibv_wc_status_str(wc->status));
	return run_failed(state, "%s %" PRIu64 ": %s (vendor error 0x%x)",
			  wc->wr_id & MESSAGE ? "the WRITE with immediate data of message" : "the SEND of ACK", number,
			  ibv_wc_status_str(wc->status), wc->vendor_err);
}

/* This side has stopped because of the other, or flushed work requests. Waits up to a second for the cause: an error of
 * this side, or what the other side says. */
static inline void look_for_cause(void)
{
	double end = now() + 1;
	struct ibv_wc wc;
	uint8_t state = STOPPED;

	while (run.state == STOPPED && now() < end) {
		int n = ibv_poll_cq(stream.cq, 1, &wc);

		if (n > 0 && wc.status != IBV_WC_SUCCESS && wc.status != IBV_WC_WR_FLUSH_ERR) {
			run.state = GOOD;
			failed_completion(&wc);
		} else if (n <= 0 && recv(side, &state, 1, MSG_PEEK | MSG_DONTWAIT) >= 0 && state != STOPPED) {
			return;
		} else if (n <= 0) {
			usleep(1000);
		}
	}
}

/* Send queue: has it room for one more? */
static inline int room(void)
{
	return run.posted - run.retired < stream.depth && run.signalled < stream.room_signalled;
}

/* Posts a send work request, signalled if it is its turn, or if `signal`. The completion of number n retires those before
 * it too. */
static inline int post(struct ibv_send_wr *wr, int signal)
{
	struct ibv_send_wr *bad;
	int error;

	wr->wr_id |= run.posted;
	wr->send_flags = 0;
	if (signal || run.plain + 1 >= stream.signal) {
		wr->send_flags = IBV_SEND_SIGNALED;
		run.plain = 0;
		run.signalled++;
	} else {
		run.plain++;
	}
	error = ibv_post_send(stream.qp, wr, &bad);
	if (error)
		return run_failed(FAILED, "ibv_post_send of number %" PRIu64 ": %s", run.posted, strerror(error));
	run.posted++;
	return 1;
}

static inline void retire(const struct ibv_wc *wc)
{
	run.retired = (wc->wr_id & ~(MESSAGE | ACK)) + 1;
	run.signalled--;
}

/* Posts what has been used of the receives. */
static inline int receives_again(void)
{
	const char *why = post_receives(run.receives);

	run.receives = 0;
	return !why || run_failed(FAILED, "%s", why);
}

/* The byte pattern of a message: 8 bytes that depend on its number and on where they are. */
static inline uint64_t pattern_word(uint64_t number, uint64_t at)
{
	return mix((number << 32) + at);
}

#endif
