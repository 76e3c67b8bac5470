/*
 * Sends a message by RDMA, and checks it: the server prints what it has received, and answers with its checksum.
 *
 *   message            the server
 *   message ADDRESS    the client
 *
 * The two sides exchange the address of their queue pairs by TCP, and everything else by a reliable connection (RC).
 * The Rust example speaks the same protocol.
 */
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <netdb.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define TCP_PORT "18700"
#define SIZE (1 << 20) /* of the message; its last eight bytes are the checksum of the others */
#define LINE 47        /* of the text that describes a queue pair */

static void check(int holds, const char *what)
{
	if (!holds) {
		perror(what);
		exit(1);
	}
}

/* FNV-1a: any change of the message changes it. */
static uint64_t checksum(const uint8_t *bytes, size_t size)
{
	uint64_t sum = 0xcbf29ce484222325;
	for (size_t i = 0; i < size; i++)
		sum = (sum ^ bytes[i]) * 0x100000001b3;
	return sum;
}

struct adapter {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	uint8_t *buffer; /* the message to send, then room for a received one */
	int gid_index;
	union ibv_gid gid;
};

/* A GID of RoCEv2, if possible that of an IPv4 address. */
static void choose_gid(struct adapter *adapter)
{
	struct ibv_gid_entry entry;
	adapter->gid_index = -1;
	for (int i = 0; i < 256; i++) {
		if (ibv_query_gid_ex(adapter->context, 1, i, &entry, 0) != 0 || entry.gid_type != IBV_GID_TYPE_ROCE_V2)
			continue;
		int ipv4 = entry.gid.global.subnet_prefix == 0 && entry.gid.raw[10] == 0xff;
		if (adapter->gid_index < 0 || ipv4) {
			adapter->gid_index = i;
			adapter->gid = entry.gid;
		}
		if (ipv4)
			break;
	}
	check(adapter->gid_index >= 0, "no GID of RoCEv2");
}

static void open_adapter(struct adapter *adapter)
{
	int count = 0;
	struct ibv_device **list = ibv_get_device_list(&count);
	check(list && count > 0, "no RDMA device (start this with `weir run -- …`)");
	adapter->context = ibv_open_device(list[0]);
	check(adapter->context != NULL, "ibv_open_device");
	printf("device %s\n", ibv_get_device_name(list[0]));
	ibv_free_device_list(list);
	choose_gid(adapter);

	check((adapter->pd = ibv_alloc_pd(adapter->context)) != NULL, "ibv_alloc_pd");
	check((adapter->cq = ibv_create_cq(adapter->context, 4, NULL, NULL, 0)) != NULL, "ibv_create_cq");
	check((adapter->buffer = malloc(2 * SIZE)) != NULL, "malloc");
	adapter->mr = ibv_reg_mr(adapter->pd, adapter->buffer, 2 * SIZE, IBV_ACCESS_LOCAL_WRITE);
	check(adapter->mr != NULL, "ibv_reg_mr");

	struct ibv_qp_init_attr init = {
		.send_cq = adapter->cq,
		.recv_cq = adapter->cq,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
	check((adapter->qp = ibv_create_qp(adapter->pd, &init)) != NULL, "ibv_create_qp");
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
	check(ibv_modify_qp(adapter->qp, &attr, mask) == 0, "INIT");
}

/* The receive is posted before the other side can send. */
static void post_receive(struct adapter *adapter)
{
	struct ibv_sge sge = { (uintptr_t)adapter->buffer + SIZE, SIZE, adapter->mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
	check(ibv_post_recv(adapter->qp, &wr, &bad) == 0, "ibv_post_recv");
}

/* A number of its own for the first packet would be better in a real program: packets of an old connection may come. */
static void describe(const struct adapter *adapter, char line[LINE + 1])
{
	int at = sprintf(line, "%06x %06x ", adapter->qp->qp_num, 0);
	for (int i = 0; i < 16; i++)
		at += sprintf(line + at, "%02x", adapter->gid.raw[i]);
	strcpy(line + at, "\n");
}

static void connect_to(struct adapter *adapter, const char *line)
{
	unsigned qpn, psn;
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1 },
	};
	check(sscanf(line, "%6x %6x ", &qpn, &psn) == 2, "the other side's line");
	for (int i = 0; i < 16; i++) {
		unsigned byte;
		check(sscanf(line + 14 + 2 * i, "%2x", &byte) == 1, "the other side's GID");
		attr.ah_attr.grh.dgid.raw[i] = byte;
	}
	attr.dest_qp_num = qpn;
	attr.rq_psn = psn;
	attr.ah_attr.grh.sgid_index = adapter->gid_index;
	attr.ah_attr.grh.hop_limit = 64;
	int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	check(ibv_modify_qp(adapter->qp, &attr, mask) == 0, "RTR");

	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7 };
	attr.max_rd_atomic = 1;
	mask = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		IBV_QP_MAX_QP_RD_ATOMIC;
	check(ibv_modify_qp(adapter->qp, &attr, mask) == 0, "RTS");
}

static void send_bytes(struct adapter *adapter, size_t size)
{
	struct ibv_sge sge = { (uintptr_t)adapter->buffer, size, adapter->mr->lkey };
	struct ibv_send_wr wr = {
		.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
	}, *bad;
	check(ibv_post_send(adapter->qp, &wr, &bad) == 0, "ibv_post_send");
}

/* Waits until so many work requests have completed; returns the bytes of the receive among them. */
static size_t wait_for(struct adapter *adapter, int completions)
{
	size_t received = 0;
	while (completions > 0) {
		struct ibv_wc wc;
		int found = ibv_poll_cq(adapter->cq, 1, &wc);
		check(found >= 0, "ibv_poll_cq");
		if (found == 0)
			continue;
		if (wc.status != IBV_WC_SUCCESS) {
			fprintf(stderr, "completion: %s\n", ibv_wc_status_str(wc.status));
			exit(1);
		}
		if (wc.opcode == IBV_WC_RECV)
			received = wc.byte_len;
		completions--;
	}
	return received;
}

/* A TCP connection: to the server if `address` is given, otherwise from a client. */
static int tcp(const char *address)
{
	struct addrinfo hints = { .ai_family = AF_INET, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE }, *found;
	check(getaddrinfo(address, TCP_PORT, &hints, &found) == 0, "getaddrinfo");
	int fd = socket(found->ai_family, found->ai_socktype, 0);
	check(fd >= 0, "socket");
	if (address) {
		check(connect(fd, found->ai_addr, found->ai_addrlen) == 0, "connect");
	} else {
		int one = 1, listener = fd;
		setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
		check(bind(listener, found->ai_addr, found->ai_addrlen) == 0 && listen(listener, 1) == 0, "listen");
		check((fd = accept(listener, NULL, NULL)) >= 0, "accept");
		close(listener);
	}
	freeaddrinfo(found);
	return fd;
}

static void read_line(int fd, char line[LINE + 1])
{
	check(recv(fd, line, LINE, MSG_WAITALL) == LINE, "the other side is gone");
	line[LINE] = 0;
}

int main(int argc, char **argv)
{
	struct adapter adapter;
	char own[LINE + 1], other[LINE + 1];
	uint64_t sum;
	int client = argc > 1;

	open_adapter(&adapter);
	post_receive(&adapter);
	describe(&adapter, own);
	int fd = tcp(client ? argv[1] : NULL);
	/* The server is ready to receive before the client learns where to send. */
	if (client)
		check(send(fd, own, LINE, 0) == LINE, "send");
	read_line(fd, other);
	connect_to(&adapter, other);
	if (!client)
		check(send(fd, own, LINE, 0) == LINE, "send");

	uint8_t *received = adapter.buffer + SIZE;
	if (client) {
		for (int i = 0; i < SIZE; i++)
			adapter.buffer[i] = i * 31 + i / 251;
		sum = checksum(adapter.buffer, SIZE - sizeof sum);
		memcpy(adapter.buffer + SIZE - sizeof sum, &sum, sizeof sum);
		send_bytes(&adapter, SIZE);
		size_t size = wait_for(&adapter, 2); /* of the send, and of the answer's receive */
		if (size != sizeof sum || memcmp(received, &sum, sizeof sum) != 0) {
			fprintf(stderr, "the server has received something else\n");
			return 1;
		}
		printf("sent %d bytes; the server has the same checksum, %016llx\n", SIZE, (unsigned long long)sum);
	} else {
		size_t size = wait_for(&adapter, 1);
		sum = checksum(received, SIZE - sizeof sum);
		if (size != SIZE || memcmp(received + SIZE - sizeof sum, &sum, sizeof sum) != 0) {
			fprintf(stderr, "the message of %zu bytes is damaged\n", size);
			return 1;
		}
		printf("received %zu bytes with the checksum %016llx\n", size, (unsigned long long)sum);
		memcpy(adapter.buffer, &sum, sizeof sum);
		send_bytes(&adapter, sizeof sum);
		wait_for(&adapter, 1);
	}

	/* Both sides have their completions when the other side closes. */
	shutdown(fd, SHUT_WR);
	check(recv(fd, other, 1, 0) == 0, "the other side's end");
	ibv_destroy_qp(adapter.qp);
	ibv_dereg_mr(adapter.mr);
	ibv_destroy_cq(adapter.cq);
	ibv_dealloc_pd(adapter.pd);
	ibv_close_device(adapter.context);
	free(adapter.buffer);
	return 0;
}
