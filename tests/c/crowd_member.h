/* One process of the crowd: it opens a device, connects a QP to that of its partner, and exchanges one message. */
#ifndef CROWD_MEMBER_H
#define CROWD_MEMBER_H

#include "setup.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* Descriptors of a member: a socket to its partner; a pipe for its report; a pipe that is closed at the end. */
enum { PARTNER = 3, REPORT, END, DESCRIPTORS };

enum { MESSAGE = 64 };

/* What a member reports; shorter than PIPE_BUF, so that reports in one pipe stay whole. Times are those of
 * CLOCK_MONOTONIC, in seconds. */
struct report {
	pid_t pid;
	int good;
	double opened, exchanged;
	char why[128];
};

static inline double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static struct report report;

static inline void send_report(void)
{
	report.pid = getpid();
	if (write(REPORT, &report, sizeof(report)) != sizeof(report))
		_exit(3);
}

/* Reports what failed, with the text of errno, and ends the process. */
static inline void give_up(const char *what)
{
	snprintf(report.why, sizeof(report.why), "%s: %s", what, strerror(errno));
	send_report();
	_exit(1);
}

struct member {
	struct ibv_context *context;
	struct ibv_comp_channel *channel;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	struct ibv_qp *qp;
	/* The outgoing message, then the incoming one. */
	uint8_t bytes[2 * MESSAGE];
};

/* How a member reaches its partner. The process ID is what the messages consist of. */
struct contact {
	uint32_t qpn;
	pid_t pid;
	union ibv_gid gid;
};

static inline void member_open(struct member *m, const char *device)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
					 .cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 } };

	if (!(m->context = device_open(device)))
		give_up("ibv_open_device");
	m->channel = ibv_create_comp_channel(m->context);
	m->pd = ibv_alloc_pd(m->context);
	if (!m->channel || !m->pd || !(m->cq = ibv_create_cq(m->context, 2, NULL, m->channel, 0)))
		give_up("ibv_create_cq");
	if (!(m->mr = ibv_reg_mr(m->pd, m->bytes, sizeof(m->bytes), IBV_ACCESS_LOCAL_WRITE)))
		give_up("ibv_reg_mr");
	init.send_cq = init.recv_cq = m->cq;
	if (!(m->qp = ibv_create_qp(m->pd, &init)))
		give_up("ibv_create_qp");
}

/* Both partners send and receive `len` bytes. */
static inline void swap(const void *mine, void *theirs, size_t len)
{
	errno = 0;
	if (send(PARTNER, mine, len, MSG_NOSIGNAL) != (ssize_t)len || recv(PARTNER, theirs, len, 0) != (ssize_t)len)
		give_up("the partner has ended");
}

static inline void member_connect(struct member *m, int gid_index, struct contact *partner)
{
	struct contact mine = { .qpn = m->qp->qp_num, .pid = getpid() };
	struct ibv_sge sge = { (uintptr_t)m->bytes + MESSAGE, MESSAGE, m->mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
	struct ibv_qp_attr attr;
	char ready = 0;

	if (gid_index < 0 && (gid_index = best_gid(m->context, 1)) < 0)
		give_up("no GID");
	if (ibv_query_gid(m->context, 1, gid_index, &mine.gid))
		give_up("ibv_query_gid");
	swap(&mine, partner, sizeof(mine));
	attr = rc_attr(partner->qpn, &partner->gid, gid_index);
	if ((errno = rc_connect(m->qp, attr)))
		give_up("ibv_modify_qp");
	if ((errno = ibv_post_recv(m->qp, &wr, &bad)))
		give_up("ibv_post_recv");
	swap(&ready, &ready, sizeof(ready));
}

/* Sends this process's ID, and waits for the partner's. It sleeps while it waits: polling processes would take the
 * cores from those that have something to do. */
static inline void member_exchange(struct member *m, const struct contact *partner)
{
	struct ibv_sge sge = { (uintptr_t)m->bytes, MESSAGE, m->mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
	pid_t mine = getpid();
	struct ibv_wc wc;
	int done = 0, n;

	for (size_t at = 0; at + sizeof(mine) <= MESSAGE; at += sizeof(mine))
		memcpy(m->bytes + at, &mine, sizeof(mine));
	if ((errno = ibv_req_notify_cq(m->cq, 0)))
		give_up("ibv_req_notify_cq");
	if ((errno = ibv_post_send(m->qp, &wr, &bad)))
		give_up("ibv_post_send");
	for (;;) {
		struct ibv_cq *cq;
		void *context;

		while ((n = ibv_poll_cq(m->cq, 1, &wc)) > 0) {
			errno = 0;
			if (wc.status)
				give_up(ibv_wc_status_str(wc.status));
			done++;
		}
		if (n < 0)
			give_up("ibv_poll_cq");
		if (done == 2)
			break;
		if (ibv_get_cq_event(m->channel, &cq, &context))
			give_up("ibv_get_cq_event");
		ibv_ack_cq_events(cq, 1);
		if ((errno = ibv_req_notify_cq(m->cq, 0)))
			give_up("ibv_req_notify_cq");
	}
	errno = 0;
	for (size_t at = 0; at + sizeof(mine) <= MESSAGE; at += sizeof(mine))
		if (memcmp(m->bytes + MESSAGE + at, &partner->pid, sizeof(mine)))
			give_up("the received bytes are wrong");
}

static inline void member_close(struct member *m)
{
	if (ibv_destroy_qp(m->qp) || ibv_dereg_mr(m->mr) || ibv_destroy_cq(m->cq) || ibv_dealloc_pd(m->pd) ||
	    ibv_destroy_comp_channel(m->channel) || ibv_close_device(m->context))
		_exit(4);
}

/* The whole life of a member, except for the time limit, which the kernel keeps. Returns its exit code. */
static inline int member_run(const char *device, int gid_index)
{
	static struct member member;
	struct contact partner;
	char byte;

	member_open(&member, device);
	report.opened = now();
	member_connect(&member, gid_index, &partner);
	member_exchange(&member, &partner);
	report.exchanged = now();
	report.good = 1;
	send_report();
	/* It stays connected until the crowd has been counted. */
	while (read(END, &byte, 1) < 0 && errno == EINTR)
		;
	member_close(&member);
	return 0;
}

#endif
