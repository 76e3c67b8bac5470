/* The parameters of LogGP, as "Designing MPI Library with On-Demand Paging (ODP) of InfiniBand" extends it (sections IV
 * to VI). The client measures; the server does its part where a parameter needs two sides. Times are in µs. */
#ifndef ODP_LOGGP_H
#define ODP_LOGGP_H

#include "odp_measure.h"
#include <sched.h>

/* The sizes of rendezvous messages, and of the eager messages that are copied. */
#define SMALLEST_RENDEZVOUS ((size_t)64 << 10)
#define LARGEST_RENDEZVOUS ((size_t)4 << 20)
#define SMALLEST_EAGER ((size_t)64)
#define LARGEST_EAGER ((size_t)256 << 10)

/* A control message; its size is the model's m_control. */
struct control {
	uint64_t at, len, number;
	uint32_t rkey, kind;
};

/* Kinds of control messages. */
enum { PING = 1, REQUEST, REPLY, FINISH };

/* Pinned bounce buffers for control messages: one to send from, and slots to receive into. */
struct bounce {
	struct buffer out, in;
};

#define SLOTS 2
/* WRITEs of a kind in a round; their difference to another kind is a parameter. */
#define TRIES 3

static inline double us_since(double start)
{
	return (now() - start) * 1e6;
}

/* As barrier(), but each side waits awake: a thread that has to be woken would come too late for what is measured. */
static inline void meet(void)
{
	char mine = 0;
	ssize_t n;

	if (send(side, &mine, 1, MSG_NOSIGNAL) != 1)
		die("the other side has closed the connection");
	while ((n = recv(side, &mine, 1, MSG_DONTWAIT)) != 1) {
		if (n == 0 || (errno != EAGAIN && errno != EINTR))
			die("the other side has closed the connection");
		sched_yield();
	}
}

static inline void bounce_open(struct bounce *b)
{
	buffer_open(&b->out, sizeof(struct control), PINNED);
	buffer_open(&b->in, SLOTS * sizeof(struct control), PINNED);
}

static inline void bounce_close(struct bounce *b)
{
	buffer_close(&b->out);
	buffer_close(&b->in);
}

/* Posts the receive of a slot. */
static inline void control_recv(struct conn *c, const struct bounce *b, int slot)
{
	struct ibv_sge data = part(&b->in, slot * sizeof(struct control), sizeof(struct control));

	post_recv(c, slot, &data, 1, "a control message");
}

/* Copies a control message into the bounce buffer and sends it. */
static inline void control_send(struct conn *c, const struct bounce *b, const struct control *message, int signaled)
{
	struct ibv_sge data = part(&b->out, 0, sizeof(*message));
	struct ibv_send_wr wr = { .sg_list = &data, .num_sge = 1, .opcode = IBV_WR_SEND };

	memcpy(b->out.at, message, sizeof(*message));
	wr.send_flags = signaled ? IBV_SEND_SIGNALED : 0;
	post_send(c, &wr, "a control message");
}

/* Waits for the control message in a slot, which must be of this kind. */
static inline struct control control_wait(struct conn *c, const struct bounce *b, int slot, uint32_t kind)
{
	struct control message;

	done(c->recv_cq, "a control message");
	memcpy(&message, b->in.at + slot * sizeof(message), sizeof(message));
	if (message.kind != kind)
		die("a control message of kind %u, should be %u", message.kind, kind);
	return message;
}

/* o_post, the time of a call of ibv_post_send; and half of the round trip of a control message. Medians of `count`. */
static inline void control_costs(struct conn *c, const struct bounce *b, int count, double *post, double *half)
{
	struct control message = { .kind = PING };
	double posts[count], halves[count];

	for (int slot = 0; slot < SLOTS; slot++)
		control_recv(c, b, slot);
	barrier();
	for (int i = 0; i < count; i++) {
		int slot = i % SLOTS;
		double start = now();

		message.number = i;
		if (client) {
			control_send(c, b, &message, 1);
			posts[i] = us_since(start);
			control_wait(c, b, slot, PING);
			halves[i] = us_since(start) / 2;
		} else {
			control_wait(c, b, slot, PING);
			control_send(c, b, &message, 1);
		}
		if (i + SLOTS < count)
			control_recv(c, b, slot);
		done(c->send_cq, "a control message");
	}
	barrier();
	*post = client ? median(posts, count) : 0;
	*half = client ? median(halves, count) : 0;
}

/* Ends a WRITE that the server's program has no part in. As in the synchronisation of MPI, the server polls until the
 * client has its completion. */
static inline void write_ended(struct conn *c, const struct bounce *b)
{
	const struct control message = { .kind = FINISH };

	if (client) {
		control_send(c, b, &message, 1);
		done(c->send_cq, "a control message");
	} else {
		control_wait(c, b, 0, FINISH);
	}
}

/* The time of `count` WRITEs of the client, `depth` of them outstanding. */
static inline double stream(struct conn *c, const struct bounce *bounce, const struct buffer *b, size_t len, int count,
			    int depth)
{
	double start;

	if (!client)
		control_recv(c, bounce, 0);
	meet();
	start = now();
	for (int ended = 0, begun = 0; client && ended < count; ended++) {
		for (; begun < count && begun < ended + depth; begun++)
			start_write(c, b, 0, len, 1);
		done(c->send_cq, "a WRITE");
	}
	start = us_since(start);
	write_ended(c, bounce);
	return start;
}

/* g and G: the time from a message to the next, and from a byte to the next, in streams of WRITEs between warm
 * buffers. */
static inline void gaps(struct conn *c, const struct bounce *b, const struct buffer *warm, double factor,
			double *message, double *byte)
{
	const size_t small = sizeof(struct control), large = 1 << 20;
	const int messages = 20000 * factor, chunks = 64 * factor;

	*message = stream(c, b, warm, small, messages, 64) / messages;
	*byte = stream(c, b, warm, large, chunks, 16) / chunks / large;
}

static inline struct ibv_mr *registered(uint8_t *at, size_t len, enum memory memory)
{
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	struct ibv_mr *mr = ibv_reg_mr(rig.pd, at, len, access | (memory == ON_DEMAND ? IBV_ACCESS_ON_DEMAND : 0));

	if (!mr)
		die("ibv_reg_mr of %zu bytes (%s): %s", len, memory_name[memory], strerror(errno));
	return mr;
}

static inline double registration(uint8_t *at, size_t len, enum memory memory)
{
	double start = now(), us;
	struct ibv_mr *mr = registered(at, len, memory);

	us = us_since(start);
	if (ibv_dereg_mr(mr))
		die("ibv_dereg_mr: %s", strerror(errno));
	return us;
}

/* reg: pinned with pages that are absent and with pages that are present, and on demand. */
static inline void registrations(size_t len, double *absent, double *present, double *odp)
{
	uint8_t *at = fresh(len);

	*absent = registration(at, len, PINNED);
	*present = registration(at, len, PINNED);
	*odp = registration(at, len, ON_DEMAND);
	munmap(at, len);
}

/* Prefetches a region; with `wait` returns after its pages are present. */
static inline void advise(struct ibv_mr *mr, int wait)
{
	struct buffer b = { .at = mr->addr, .mr = mr };

	prefetch(&b, mr->length, wait);
}

/* o_prefetch: a call over new memory, which the program has filled or not; and the same call once more. */
static inline void prefetches(size_t len, int filled, int wait, double *first, double *again)
{
	uint8_t *at = fresh(len);
	struct ibv_mr *mr;
	double start;

	if (filled)
		pattern(at, len, 1);
	mr = registered(at, len, ON_DEMAND);
	start = now();
	advise(mr, wait);
	*first = us_since(start);
	/* The call did not wait, but the next one is to find the pages present. */
	if (!wait)
		advise(mr, 1);
	start = now();
	advise(mr, wait);
	*again = us_since(start);
	if (ibv_dereg_mr(mr))
		die("ibv_dereg_mr: %s", strerror(errno));
	munmap(at, len);
}

/* The copy of `len` bytes, mean of `count`. */
static inline double copy_time(uint8_t *to, const uint8_t *from, size_t len, int count)
{
	double start = now();

	for (int i = 0; i < count; i++) {
		memcpy(to, from, len);
		/* The compiler must not drop copies that the next one overwrites. */
		__asm__ volatile("" : : "r"(to) : "memory");
	}
	return us_since(start) / count;
}

/* Eager messages of each size: c, their copy; and o_prefetch of a bounce buffer on demand, if there was one. */
static inline void eager_costs(int round, double factor)
{
	uint8_t *from = fresh(LARGEST_EAGER), *to = fresh(LARGEST_EAGER);

	pattern(from, LARGEST_EAGER, round);
	memset(to, 1, LARGEST_EAGER);
	for (size_t len = SMALLEST_EAGER; len <= LARGEST_EAGER; len *= 4) {
		int count = (32 << 20) * factor / len;
		double copy, first, again;

		copy = copy_time(to, from, len, count < 10 ? 10 : count > 100000 ? 100000 : count);
		prefetches(len, 1, 0, &first, &again);
		printf("{\"what\":\"eager\",\"bytes\":%zu,\"round\":%d,\"copy\":%.6g,\"prefetch\":%.4f}\n", len, round,
		       copy, first);
	}
	munmap(from, LARGEST_EAGER);
	munmap(to, LARGEST_EAGER);
}

/* The first WRITE through new memory, which is filled at the client and untouched at the server. */
static inline double first_write(struct conn *c, const struct bounce *bounce, size_t len, enum memory sender,
				 enum memory receiver)
{
	struct buffer b;
	double start;

	buffer_open(&b, len, client ? sender : receiver);
	if (client)
		pattern(b.at, len, 1);
	else
		control_recv(c, bounce, 0);
	meet();
	start = now();
	if (client) {
		start_write(c, &b, 0, len, 1);
		done(c->send_cq, "a WRITE");
		start = us_since(start);
	}
	write_ended(c, bounce);
	buffer_close(&b);
	return start;
}

/* All parameters of a round for messages of `len` bytes. Returns a time after which a prefetch has surely ended. */
static inline double parameters(struct conn *c, const struct bounce *b, const struct buffer *warm, size_t len,
				int round, double factor)
{
	double post, half, message, byte, absent = 0, present = 0, odp = 0, settle;
	double cold[2] = { 0 }, filled[2] = { 0 }, again[2] = { 0 }, unused;
	double pinned[TRIES], sender[TRIES], receiver[TRIES];
	int count = 1000 * factor;

	control_costs(c, b, count < 50 ? 50 : count, &post, &half);
	gaps(c, b, warm, factor, &message, &byte);
	if (client) {
		registrations(len, &absent, &present, &odp);
		for (int wait = 0; wait < 2; wait++) {
			prefetches(len, 0, wait, &cold[wait], &unused);
			prefetches(len, 1, wait, &filled[wait], &again[wait]);
		}
	}
	for (int try = 0; try < TRIES; try++) {
		pinned[try] = first_write(c, b, len, PINNED, PINNED);
		sender[try] = first_write(c, b, len, ON_DEMAND, PINNED);
		receiver[try] = first_write(c, b, len, PINNED, ON_DEMAND);
	}
	if (client)
		printf("{\"what\":\"parameters\",\"bytes\":%zu,\"round\":%d,\"post\":%.4f,\"half\":%.4f,\"gap\":%.5f,"
		       "\"byte\":%.6g,\"reg_absent\":%.4f,\"reg_present\":%.4f,\"reg_odp\":%.4f,"
		       "\"prefetch_absent\":%.4f,\"prefetch_present\":%.4f,\"prefetch_again\":%.4f,"
		       "\"flush_absent\":%.4f,\"flush_present\":%.4f,\"flush_again\":%.4f,"
		       "\"write_pinned\":%.4f,\"write_sender\":%.4f,\"write_receiver\":%.4f}\n",
		       len, round, post, half, message, byte, absent, present, odp, cold[0], filled[0], again[0], cold[1],
		       filled[1], again[1], median(pinned, TRIES), median(sender, TRIES), median(receiver, TRIES));
	settle = cold[1] + filled[1];
	exchange(&settle, &unused, sizeof(settle));
	return client ? settle : unused;
}

#endif
