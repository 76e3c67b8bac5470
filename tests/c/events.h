/* Completion channels: one event for every arming that a completion matches, and no other events. */
#ifndef EVENTS_H
#define EVENTS_H

#include "rig.h"

#include <pthread.h>

/* Takes and acknowledges an event within `ms` milliseconds; returns whether there was an event, and of this CQ. */
static inline int took_event(struct conn *c, struct ibv_cq *of, int ms)
{
	struct pollfd fd = { .fd = c->channel->fd, .events = POLLIN };
	struct ibv_cq *cq = NULL;
	void *cq_context = NULL;

	if (poll(&fd, 1, ms) != 1)
		return 0;
	if (ibv_get_cq_event(c->channel, &cq, &cq_context))
		die("ibv_get_cq_event: %s", strerror(errno));
	ibv_ack_cq_events(cq, 1);
	return cq == of && cq_context == c;
}

/* Polls; if the CQ is empty, arms, polls again and waits, as programs do. */
static inline void drain(struct conn *c, struct ibv_cq *cq, int count, const char *what)
{
	struct ibv_wc wc;
	int done = 0, armed = 0, n;

	while (done < count) {
		while ((n = ibv_poll_cq(cq, 1, &wc)) > 0)
			done += check(wc.status == IBV_WC_SUCCESS && wc.wr_id == (uint64_t)done, "%s: WR %" PRIu64 ", %s", what,
				      wc.wr_id, ibv_wc_status_str(wc.status));
		if (n < 0 || done >= count)
			break;
		if (!armed) {
			armed = !ibv_req_notify_cq(cq, 0);
		} else {
			if (!took_event(c, cq, opt.seconds * 1000))
				die("%s: no event after %d of %d", what, done, count);
			armed = 0;
		}
	}
	check(done == count, "%s: %d of %d", what, done, count);
}

static volatile int destroyed;

static inline void *destroy_cq(void *cq)
{
	int error = ibv_destroy_cq(cq);

	destroyed = 1;
	return (void *)(intptr_t)error;
}

/* A CQ cannot be destroyed while an event of it is unacknowledged. */
static inline void held_event(struct conn *c, struct ibv_cq *cq)
{
	struct ibv_cq *of;
	void *cq_context, *error = NULL;
	pthread_t thread;

	if (ibv_get_cq_event(c->channel, &of, &cq_context) || of != cq)
		die("ibv_get_cq_event: %s", strerror(errno));
	destroyed = 0;
	if (pthread_create(&thread, NULL, destroy_cq, cq))
		die("pthread_create");
	usleep(50000);
	check(!destroyed, "a CQ was destroyed with an unacknowledged event");
	ibv_ack_cq_events(cq, 1);
	pthread_join(thread, &error);
	check(!error, "ibv_destroy_cq after its event was acknowledged: %s", strerror((intptr_t)error));
}

static inline void event_driven(struct conn *unused)
{
	struct ibv_qp_attr error_state = { .qp_state = IBV_QPS_ERR };
	struct conn_options options = default_options;
	struct conn c;
	struct ibv_sge data = client ? sge(&rig.source, 4096, 64) : sge(&rig.target, 4096, 64);
	struct ibv_send_wr wr = { .sg_list = &data, .num_sge = 1, .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED };

	(void)unused;
	options.channel = 1;
	conn_open(&c, &options);
	for (int round = 0; round < 20; round++) {
		if (!client)
			for (int i = 0; i < 32; i++)
				post_recv(&c, i, &data, 1, "events");
		barrier();
		for (int i = 0; client && i < 32; i++) {
			wr.wr_id = i;
			post_send(&c, &wr, "events");
			if (round % 4 == 1)
				usleep(200);
		}
		drain(&c, client ? c.send_cq : c.recv_cq, 32, "event-driven");
		barrier();
	}
	conn_close(&c);

	/* Another connection, because an arming that is left over would match any completion. */
	conn_open(&c, &options);
	for (int solicited = 0; solicited < 2; solicited++) {
		if (!client) {
			post_recv(&c, 100 + solicited, &data, 1, "solicited");
			check(!ibv_req_notify_cq(c.recv_cq, 1), "ibv_req_notify_cq for solicited completions");
		}
		barrier();
		if (client) {
			wr.wr_id = 100 + solicited;
			wr.send_flags = IBV_SEND_SIGNALED | (solicited ? IBV_SEND_SOLICITED : 0);
			post_send(&c, &wr, "solicited");
			expect(c.send_cq, wr.wr_id, IBV_WC_SUCCESS, IBV_WC_SEND, "solicited");
		} else {
			check(took_event(&c, c.recv_cq, solicited ? opt.seconds * 1000 : 100) == solicited,
			      "%s solicited SEND, armed for solicited completions", solicited ? "a" : "not a");
			expect(c.recv_cq, 100 + solicited, IBV_WC_SUCCESS, IBV_WC_RECV, "solicited");
		}
		barrier();
	}
	conn_close(&c);

	/* The receives of an SRQ are not flushed. */
	if (opt.xrc)
		return;
	/* Flushed receives complete and raise an event without any peer. */
	conn_make(&c, &options);
	check(!to_init(c.qp), "RESET to INIT");
	post_recv(&c, 1, &data, 1, "held event");
	check(!ibv_req_notify_cq(c.recv_cq, 0), "ibv_req_notify_cq");
	check(!ibv_modify_qp(c.qp, &error_state, IBV_QP_STATE), "INIT to ERROR");
	expect(c.recv_cq, 1, IBV_WC_WR_FLUSH_ERR, 0, "held event");
	check(!ibv_destroy_qp(c.qp), "ibv_destroy_qp");
	held_event(&c, c.recv_cq);
	check(ibv_destroy_comp_channel(c.channel) == EBUSY, "a channel with a CQ was destroyed");
	check(!ibv_destroy_cq(c.send_cq) && !ibv_destroy_comp_channel(c.channel), "ibv_destroy_comp_channel");
}

#endif
