/*
 * Messages as the model describes them (the same paper, sections V and VI): the rendezvous by RDMA WRITE, and Put with
 * active synchronisation. The client sends, the server receives and compares every byte.
 *
 * Rendezvous: the sender registers its buffer and sends a control message; the receiver registers its own and replies
 * with address and rkey; the sender WRITEs, and sends a finish message behind the WRITE. Control messages are SENDs
 * between pinned bounce buffers. Each message has new memory: the send buffer is filled, the receive buffer untouched.
 */
#ifndef ODP_RENDEZVOUS_H
#define ODP_RENDEZVOUS_H

#include "odp_core.h"
#include "odp_counters.h"
#include "odp_loggp.h"

struct scenario {
	const char *name;
	enum memory memory;
	/* Each side prefetches its buffer behind its control message. */
	int prefetch;
	/* The program computes between send and completion, and the pages of the buffers go meanwhile. */
	int compute;
	/* The receiver computes before it replies, so the sender waits for the reply and prefetches again. */
	int late;
	/* Put instead of the rendezvous; if `synchronised`, both sides prefetch their windows in the synchronisation. */
	int put, synchronised;
};

static const struct scenario scenarios[] = {
	{ .name = "pinned", .memory = PINNED },
	{ .name = "no prefetch", .memory = ON_DEMAND },
	{ .name = "prefetch", .memory = ON_DEMAND, .prefetch = 1 },
	{ .name = "invalidated", .memory = ON_DEMAND, .prefetch = 1, .compute = 1 },
	{ .name = "prefetched again", .memory = ON_DEMAND, .prefetch = 1, .compute = 1, .late = 1 },
	{ .name = "put", .memory = ON_DEMAND, .prefetch = 1, .put = 1 },
	{ .name = "put synchronised", .memory = ON_DEMAND, .prefetch = 1, .put = 1, .synchronised = 1 },
};

#define SCENARIOS ((int)(sizeof(scenarios) / sizeof(*scenarios)))

/* Bytes that were compared. */
static uint64_t verified;

/* Computes on a page for so long. */
static inline void work(double us)
{
	static uint64_t page[PAGE / 8];

	for (double start = now(); us_since(start) < us;)
		compute(page, PAGE / 8, 4);
}

/*
 * The pages of a buffer go as if the system had taken them: MADV_DONTNEED, after the prefetch has ended. A send buffer
 * is filled again with the same data, so its pages are present, but the adapter has to find them anew.
 */
static inline void take_pages(uint8_t *at, size_t len, struct ibv_mr *mr, const uint8_t *content)
{
	advise(mr, 1);
	if (madvise(at, len, MADV_DONTNEED))
		die("madvise: %s", strerror(errno));
	if (content)
		memcpy(at, content, len);
}

/* The sender's time in the calls that send and complete a message, without the computation between them. */
static inline double send_message(struct conn *c, const struct bounce *b, const struct scenario *s, uint8_t *at,
				  size_t len, const uint8_t *content, double settle)
{
	struct control message = { .kind = REQUEST, .len = len };
	double start = now(), us;
	struct ibv_mr *mr = registered(at, len, s->memory);
	struct ibv_sge data = { (uintptr_t)at, len, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &data, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE };

	control_send(c, b, &message, 0);
	if (s->prefetch)
		advise(mr, 0);
	us = us_since(start);
	if (s->compute) {
		work(settle);
		take_pages(at, len, mr, content);
		meet();
	}
	start = now();
	if (s->late)
		advise(mr, 0);
	message = control_wait(c, b, 0, REPLY);
	wr.wr.rdma.remote_addr = message.at;
	wr.wr.rdma.rkey = message.rkey;
	post_send(c, &wr, "the payload");
	message.kind = FINISH;
	control_send(c, b, &message, 1);
	done(c->send_cq, "the finish message");
	us += us_since(start);
	barrier();
	if (ibv_dereg_mr(mr))
		die("ibv_dereg_mr: %s", strerror(errno));
	return us;
}

static inline void receive_message(struct conn *c, const struct bounce *b, const struct scenario *s, uint8_t *at,
				   size_t len, double settle)
{
	struct control reply = { .kind = REPLY, .len = len, .at = (uintptr_t)at };
	struct ibv_mr *mr;

	if (s->late) {
		work(settle);
		meet();
	}
	control_wait(c, b, 0, REQUEST);
	mr = registered(at, len, s->memory);
	reply.rkey = mr->rkey;
	control_send(c, b, &reply, 1);
	if (s->prefetch)
		advise(mr, 0);
	if (s->compute && !s->late) {
		work(settle);
		take_pages(at, len, mr, NULL);
		meet();
	}
	control_wait(c, b, 1, FINISH);
	done(c->send_cq, "the reply");
	barrier();
	if (ibv_dereg_mr(mr))
		die("ibv_dereg_mr: %s", strerror(errno));
}

/* The origin's time from the call of Put to the completion of its WRITE. The windows are new, and registered before. */
static inline double put(struct conn *c, const struct bounce *b, const struct scenario *s, uint8_t *at, size_t len)
{
	struct buffer window = { .at = at, .len = len, .mr = registered(at, len, s->memory) };
	struct control mine = { .at = (uintptr_t)at, .rkey = window.mr->rkey }, theirs;
	double start;

	exchange(&mine, &theirs, sizeof(mine));
	window.far = theirs.at;
	window.rkey = theirs.rkey;
	if (s->synchronised)
		advise(window.mr, 1);
	meet();
	start = now();
	if (client) {
		if (!s->synchronised)
			advise(window.mr, 0);
		start_write(c, &window, 0, len, 1);
		done(c->send_cq, "Put");
		start = us_since(start);
	}
	write_ended(c, b);
	barrier();
	if (ibv_dereg_mr(window.mr))
		die("ibv_dereg_mr: %s", strerror(errno));
	return start;
}

/* A message of `len` bytes with data of its own. Returns the client's time. */
static inline double message(struct conn *c, const struct bounce *b, const struct scenario *s, size_t len,
			     double settle)
{
	static uint64_t number;
	uint8_t *at = fresh(len), *content = malloc(len);
	double us = 0;

	if (!content)
		die("no memory for %zu bytes", len);
	pattern(content, len, number++ << 32);
	if (client)
		memcpy(at, content, len);
	if (!s->put || !client)
		control_recv(c, b, 0);
	if (!s->put && !client)
		control_recv(c, b, 1);
	meet();
	if (s->put)
		us = put(c, b, s, at, len);
	else if (client)
		us = send_message(c, b, s, at, len, content, settle);
	else
		receive_message(c, b, s, at, len, settle);
	if (!client && memcmp(at, content, len))
		die("%s, %zu bytes: the received bytes are not those that were sent", s->name, len);
	verified += len;
	free(content);
	munmap(at, len);
	barrier();
	return us;
}

/* Page faults of both sides in each scenario, of one message of each size; -1 where the adapter does not count. */
static inline void scenario_faults(struct conn *c, const struct bounce *b, double settle)
{
	for (const struct scenario *s = scenarios; s < scenarios + SCENARIOS; s++) {
		long before = page_faults(), faults, far;

		for (size_t len = SMALLEST_RENDEZVOUS; len <= LARGEST_RENDEZVOUS; len *= 2)
			message(c, b, s, len, settle);
		faults = before < 0 ? -1 : page_faults() - before;
		exchange(&faults, &far, sizeof(faults));
		if (client)
			printf("{\"what\":\"faults\",\"scenario\":\"%s\",\"sender\":%ld,\"receiver\":%ld}\n", s->name,
			       faults, far);
	}
}

/* The parameters, and messages in every scenario, in turns. `ack_timeout` is that of the QPs, in µs: what takes as long
 * has lost a packet. */
static inline void loggp(struct conn *c, int rounds, double factor, double ack_timeout)
{
	struct bounce bounce;
	struct buffer warm;
	double settle = 0;

	bounce_open(&bounce);
	buffer_open(&warm, 1 << 20, PINNED);
	throughput(c, &warm, 1 << 20, 32 << 20, 16);
	for (int round = 0; client && round < rounds; round++)
		eager_costs(round, factor);
	barrier();
	for (size_t len = SMALLEST_RENDEZVOUS; len <= LARGEST_RENDEZVOUS; len *= 2)
		for (int round = 0; round < rounds; round++) {
			settle = parameters(c, &bounce, &warm, len, round, factor);
			for (int i = 0; i < SCENARIOS; i++) {
				double us = message(c, &bounce, &scenarios[i], len, settle);

				if (client)
					printf("{\"what\":\"message\",\"scenario\":\"%s\",\"bytes\":%zu,\"round\":%d,"
					       "\"value\":%.3f}\n", scenarios[i].name, len, round, us);
			}
		}
	scenario_faults(c, &bounce, settle);
	if (client)
		printf("{\"what\":\"verified\",\"bytes\":%" PRIu64 ",\"control\":%zu,\"timeout\":%.1f}\n", verified,
		       sizeof(struct control), ack_timeout);
	buffer_close(&warm);
	bounce_close(&bounce);
}

#endif
