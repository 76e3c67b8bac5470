/* Completion channels: an event for every arming that has something to say, and none for others. */
#ifndef EVENTS_H
#define EVENTS_H

#include "rig.h"

#include <poll.h>

/* Takes and acknowledges an event within `ms`; whether there was one of this CQ. */
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

/* Polls; if there is nothing, arms, polls again and waits: how programs do it. */
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

static inline void event_driven(struct conn *unused)
{
	struct wish wish = usual;
	struct conn c;
	struct ibv_sge piece = client ? sge(&rig.source, 4096, 64) : sge(&rig.target, 4096, 64);
	struct ibv_send_wr wr = { .sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED };

	(void)unused;
	wish.channel = 1;
	conn_open(&c, &wish);
	for (int round = 0; round < 20; round++) {
		if (!client)
			for (int i = 0; i < 32; i++)
				post_recv(&c, i, &piece, 1, "events");
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

	/* Another connection: an arming that is left over would be for any completion. */
	conn_open(&c, &wish);
	for (int solicited = 0; solicited < 2; solicited++) {
		if (!client) {
			post_recv(&c, 100 + solicited, &piece, 1, "solicited");
			check(!ibv_req_notify_cq(c.recv_cq, 1), "ibv_req_notify_cq for solicited ones");
		}
		barrier();
		if (client) {
			wr.wr_id = 100 + solicited;
			wr.send_flags = IBV_SEND_SIGNALED | (solicited ? IBV_SEND_SOLICITED : 0);
			post_send(&c, &wr, "solicited");
			expect(c.send_cq, wr.wr_id, IBV_WC_SUCCESS, IBV_WC_SEND, "solicited");
		} else {
			check(took_event(&c, c.recv_cq, solicited ? opt.seconds * 1000 : 100) == solicited,
			      "%s solicited SEND, armed for solicited ones", solicited ? "a" : "not a");
			expect(c.recv_cq, 100 + solicited, IBV_WC_SUCCESS, IBV_WC_RECV, "solicited");
		}
		barrier();
	}
	conn_close(&c);
}

#endif
