/*
 * A peer dies. Weir must not accept ACKs from a program that binds its port. A new process that gets its slot must be
 * reachable by new QPs, and by new QPs only.
 *
 * usage: dead_peer DEVICE GID_INDEX takeover|late-takeover|successor|successor-after-destroy
 * On success prints "ok" as its last line and exits with status 0. The successor cases need a network namespace with
 * two free slots.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../c/fatal.h"
#include "../c/setup.h"

enum { SIZE = 4096, SLOT_SHIFT = 14, FIRST_PORT = 20480 };

static const char *device;
static int gid_index;
/* Local ACK timeout, as a code. With retry_cnt 7 there are eight tries. */
static int timeout_code = 13;

/* One end of a connection, as the processes exchange it. */
struct end {
	uint32_t qpn, psn, rkey;
	uint64_t addr;
};

struct side {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	union ibv_gid gid;
	uint8_t *memory;
};

/* A process with one QP. */
struct child {
	pid_t pid;
	int to, from;
	struct end end;
};

static struct side open_side(void)
{
	struct side side = { 0 };
	CHECK(side.context = device_open(device));
	CHECK(!ibv_query_gid(side.context, 1, gid_index, &side.gid));
	CHECK(side.pd = ibv_alloc_pd(side.context));
	CHECK(side.cq = ibv_create_cq(side.context, 16, NULL, NULL, 0));
	CHECK(side.memory = aligned_alloc(4096, SIZE));
	memset(side.memory, 0, SIZE);
	CHECK(side.mr = ibv_reg_mr(side.pd, side.memory, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
	return side;
}

static struct ibv_qp *make_qp(struct side *side, struct end *own)
{
	struct ibv_qp_init_attr init = {
		.send_cq = side->cq, .recv_cq = side->cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp(side->pd, &init);
	CHECK(qp);
	*own = (struct end){ qp->qp_num, lrand48() & 0xffffff, side->mr->rkey, (uintptr_t)side->memory };
	return qp;
}

static void connect_qp(struct side *side, struct ibv_qp *qp, const struct end *own, const struct end *far)
{
	struct ibv_qp_attr attr = rc_attr(far->qpn, &side->gid, gid_index);
	attr.rq_psn = far->psn;
	attr.sq_psn = own->psn;
	attr.timeout = timeout_code;
	CHECK(!rc_connect(qp, attr));
}

/* Posts a WRITE of three packets to the other end. */
static void post(struct side *side, struct ibv_qp *qp, const struct end *far)
{
	struct ibv_sge sge = { (uintptr_t)side->memory, 3000, side->mr->lkey };
	struct ibv_send_wr *bad, wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
					.wr.rdma = { far->addr, far->rkey } };
	CHECK(!ibv_post_send(qp, &wr, &bad));
}

/* Waits for a completion and returns its status. */
static enum ibv_wc_status ended(struct side *side)
{
	struct ibv_wc wc;
	time_t until = time(NULL) + 20;
	int count;
	while (!(count = ibv_poll_cq(side->cq, 1, &wc)))
		CHECK(time(NULL) < until);
	CHECK(count == 1);
	return wc.status;
}

static enum ibv_wc_status transfer(struct side *side, struct ibv_qp *qp, const struct end *far)
{
	post(side, qp, far);
	return ended(side);
}

static void run_child(int from, int to)
{
	struct side side = open_side();
	struct end own, far;
	char nothing;
	srand48(getpid());
	struct ibv_qp *qp = make_qp(&side, &own);
	CHECK(write(to, &own, sizeof own) == sizeof own);
	CHECK(read(from, &far, sizeof far) == sizeof far);
	connect_qp(&side, qp, &own, &far);
	CHECK(write(to, "", 1) == 1);
	/* Blocks until the parent kills this process or ends. */
	if (read(from, &nothing, 1)) {}
	_exit(0);
}

static struct child start_child(void)
{
	struct child child;
	int there[2], back[2];
	CHECK(!pipe(there) && !pipe(back));
	CHECK((child.pid = fork()) >= 0);
	if (!child.pid) {
		close(there[1]);
		close(back[0]);
		run_child(there[0], back[1]);
	}
	close(there[0]);
	close(back[1]);
	child.to = there[1];
	child.from = back[0];
	CHECK(read(child.from, &child.end, sizeof child.end) == sizeof child.end);
	return child;
}

static struct ibv_qp *connect_child(struct side *side, struct child *child)
{
	struct end own;
	char ready;
	struct ibv_qp *qp = make_qp(side, &own);
	CHECK(write(child->to, &own, sizeof own) == sizeof own);
	connect_qp(side, qp, &own, &child->end);
	CHECK(read(child->from, &ready, 1) == 1);
	CHECK(transfer(side, qp, &child->end) == IBV_WC_SUCCESS);
	return qp;
}

static void end_child(struct child *child)
{
	CHECK(!kill(child->pid, SIGKILL));
	CHECK(waitpid(child->pid, NULL, 0) == child->pid);
}

/* A program that binds the port of a dead process, echoes hellos and acknowledges every request. */
struct impostor {
	int socket;
	uint32_t victim;
	volatile int stop, acknowledged;
};

static void *impersonate(void *argument)
{
	struct impostor *impostor = argument;
	uint8_t packet[65536], ack[20];
	while (!impostor->stop) {
		struct pollfd ready = { impostor->socket, POLLIN, 0 };
		struct sockaddr_in from;
		socklen_t size = sizeof from;
		if (poll(&ready, 1, 10) != 1)
			continue;
		ssize_t len = recvfrom(impostor->socket, packet, sizeof packet, 0, (struct sockaddr *)&from, &size);
		if (len < 16)
			continue;
		if (!memcmp(packet, "WEIR", 4)) {
			/* Sends the hello back unchanged, so that it carries the nonce and a valid checksum. */
			sendto(impostor->socket, packet, len, 0, (struct sockaddr *)&from, size);
			continue;
		}
		/* Two ACKs: one with 0 in place of the ICRC, one with the four bytes that the request carries there. */
		for (int form = 0; form < 2; form++) {
			memset(ack, 0, sizeof ack);
			ack[0] = 0x11;
			ack[1] = 0x40;
			ack[2] = ack[3] = 0xff;
			ack[5] = impostor->victim >> 16;
			ack[6] = impostor->victim >> 8;
			ack[7] = impostor->victim;
			memcpy(ack + 9, packet + 9, 3);
			ack[12] = 0x1f;
			if (form)
				memcpy(ack + 16, packet + len - 4, 4);
			sendto(impostor->socket, ack, sizeof ack, 0, (struct sockaddr *)&from, size);
			impostor->acknowledged++;
		}
	}
	return NULL;
}

/* `late`: the impostor binds the port after the first ACK timeout. */
static void takeover(int late)
{
	struct child child = start_child();
	struct side side = open_side();
	struct ibv_qp *qp = connect_child(&side, &child);
	struct sockaddr_in port = { .sin_family = AF_INET, .sin_port = htons(FIRST_PORT + (child.end.qpn >> SLOT_SHIFT)) };
	struct impostor impostor = { .socket = socket(AF_INET, SOCK_DGRAM, 0), .victim = qp->qp_num };
	const struct timespec first_timeout = { .tv_nsec = 700000000 };
	pthread_t thread;
	end_child(&child);
	if (late) {
		post(&side, qp, &child.end);
		nanosleep(&first_timeout, NULL);
	}
	CHECK(!bind(impostor.socket, (struct sockaddr *)&port, sizeof port));
	CHECK(!pthread_create(&thread, NULL, impersonate, &impostor));
	enum ibv_wc_status status = late ? ended(&side) : transfer(&side, qp, &child.end);
	impostor.stop = 1;
	CHECK(!pthread_join(thread, NULL));
	/* In the late case the impostor receives hellos only. */
	CHECK(late ? !impostor.acknowledged : impostor.acknowledged > 0);
	CHECK(status == IBV_WC_RETRY_EXC_ERR);
}

static void successor(int destroy)
{
	struct child child = start_child();
	struct side side = open_side();
	struct ibv_qp *old = connect_child(&side, &child), *new;
	struct end dead = child.end;
	end_child(&child);
	if (destroy)
		CHECK(!ibv_destroy_qp(old));
	child = start_child();
	CHECK(child.end.qpn >> SLOT_SHIFT == dead.qpn >> SLOT_SHIFT);
	new = connect_child(&side, &child);
	if (!destroy)
		CHECK(transfer(&side, old, &dead) == IBV_WC_RETRY_EXC_ERR);
	CHECK(transfer(&side, new, &child.end) == IBV_WC_SUCCESS);
	end_child(&child);
}

int main(int argc, char **argv)
{
	CHECK(argc == 4);
	device = argv[1];
	gid_index = atoi(argv[2]);
	srand48(getpid());
	alarm(60);
	if (!strcmp(argv[3], "takeover"))
		takeover(0);
	else if (!strcmp(argv[3], "late-takeover")) {
		/* 134 to 537 ms per try. */
		timeout_code = 15;
		takeover(1);
	}
	else
		successor(!strcmp(argv[3], "successor-after-destroy"));
	puts("ok");
	return 0;
}
