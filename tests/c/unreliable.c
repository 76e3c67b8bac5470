/* UC and UD between two processes: messages must arrive complete, in order and at most once; the loss of a message
 * must not affect others.
 *
 *   unreliable uc|ud DEVICE GID [demand]            both processes, the second is a child
 *   unreliable uc|ud DEVICE GID MTU PORT [HOST]     one process, the receiver or, with HOST, the sender
 *
 * With `demand` the memory is an ODP region, and its pages are discarded after each batch. PORT is that of a TCP
 * connection between the two.
 *
 * Prints the numbers of sent and arrived messages. Each batch is received before the next one is sent, because UC and
 * UD have no flow control. */
#include "threads_rig.h"

#include <netdb.h>
#include <sys/mman.h>

/* A datagram is one packet; a UC message is three packets of 1024 bytes. */
enum { BATCH = 64, MTU = 1024, LONGEST = 3 * MTU, GRH = 40, QKEY = 0x11111111 };
/* For how long a receiver waits for the rest of a batch, milliseconds, and how many there are: from a process of this
 * host, from another host. */
enum { SILENCE_MS = 50, FAR_SILENCE_MS = 300, BATCHES = 50, FAR_BATCHES = 15 };
enum { AREA = 3 * BATCH * 4096 };

static struct {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	uint8_t *area;
	union ibv_gid gid, peer_gid;
	/* The other process's QP, and the target of WRITEs. */
	uint32_t peer, peer_key;
	uint64_t peer_area;
	int ud, side, demand, mtu, silence, batches;
} my;

static uint8_t *slot_at(int slot)
{
	return my.area + slot * 4096;
}

static int length_of(uint32_t number)
{
	return my.ud ? 4 + number * 13 % ((my.mtu < MTU ? my.mtu : MTU) - 3) : 2 * MTU + 1 + number * 7 % MTU;
}

/* Every second UC message is a WRITE with immediate. */
static int is_write(uint32_t number)
{
	return !my.ud && number % 2;
}

/* Every second SEND has the number as immediate data. */
static int has_immediate(uint32_t number)
{
	return is_write(number) || number / 2 % 2;
}

/* The slot that a WRITE goes to. */
static int target(uint32_t number)
{
	return 2 * BATCH + number % BATCH;
}

static void pattern(uint8_t *to, uint32_t number)
{
	for (int i = 0; i < LONGEST; i += 4) {
		uint32_t word = (number + 1) * 2654435761u + i;

		memcpy(to + i, &word, 4);
	}
	memcpy(to, &number, 4);
}

static void receive(int slot)
{
	struct ibv_sge sge = { (uintptr_t)slot_at(slot), 4096, my.mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = slot, .sg_list = &sge, .num_sge = 1 }, *bad;

	if (ibv_post_recv(my.qp, &wr, &bad))
		die("ibv_post_recv");
}

/* Waits up to `milliseconds` for a completion, which must be a success. Returns 0 if none comes. */
static int next(struct ibv_wc *wc, int milliseconds)
{
	double end = now() + milliseconds * 1e-3;
	int n;

	while ((n = ibv_poll_cq(my.cq, 1, wc)) == 0)
		if (now() > end)
			return 0;
	if (n < 0 || wc->status != IBV_WC_SUCCESS)
		die("a completion with %s", n < 0 ? "an error" : ibv_wc_status_str(wc->status));
	return 1;
}

static void notify(void)
{
	if (write(my.side, "", 1) != 1)
		die("the other process has ended");
}

static void wait_for_peer(void)
{
	char word;

	if (read(my.side, &word, 1) != 1)
		die("the other process has ended");
}

static void send_batch(struct ibv_ah *ah, uint32_t first)
{
	struct ibv_wc wc;

	for (int i = 0; i < BATCH; i++) {
		uint32_t number = first + i;
		struct ibv_sge sge = { (uintptr_t)slot_at(i), length_of(number), my.mr->lkey };
		struct ibv_send_wr wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;

		wr.send_flags = IBV_SEND_SIGNALED;
		if (has_immediate(number)) {
			wr.opcode = is_write(number) ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_SEND_WITH_IMM;
			wr.imm_data = number;
		}
		if (is_write(number)) {
			wr.wr.rdma.remote_addr = my.peer_area + target(number) * 4096;
			wr.wr.rdma.rkey = my.peer_key;
		}
		if (my.ud) {
			wr.wr.ud.ah = ah;
			wr.wr.ud.remote_qpn = my.peer;
			wr.wr.ud.remote_qkey = QKEY;
		}
		pattern(slot_at(i), number);
		if (ibv_post_send(my.qp, &wr, &bad))
			die("ibv_post_send");
	}
	for (uint64_t i = 0; i < BATCH; i++)
		if (!next(&wc, 10000) || wc.wr_id != i)
			die("no completion of send %" PRIu64, i);
}

/* Returns the number of messages that arrived. */
static int receive_batch(uint32_t first)
{
	uint8_t expected[LONGEST];
	uint32_t number, least = first;
	struct ibv_wc wc;
	int skip = my.ud ? GRH : 0, count = 0;

	while (count < BATCH && next(&wc, my.silence)) {
		int wrote = wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM;
		uint8_t *got = slot_at(wc.wr_id) + skip;

		if (wrote)
			number = wc.imm_data;
		else
			memcpy(&number, got, 4);
		if (number < least || number >= first + BATCH || wrote != is_write(number) ||
		    !!(wc.wc_flags & IBV_WC_WITH_IMM) != has_immediate(number) ||
		    (has_immediate(number) && wc.imm_data != number))
			die("message %u after %u of batch %u", number, least, first);
		if (wrote)
			got = slot_at(target(number));
		pattern(expected, number);
		if (wc.byte_len != (uint32_t)(length_of(number) + skip) || memcmp(got, expected, length_of(number)))
			die("message %u has wrong contents", number);
		least = number + 1;
		count++;
		receive(wc.wr_id);
	}
	return count;
}

/* Discards the pages of the ODP region. */
static void give_back(void)
{
	if (my.demand && madvise(my.area, AREA, MADV_DONTNEED))
		die("madvise: %s", strerror(errno));
}

static void make_qp(void)
{
	struct ibv_qp_init_attr init = { .send_cq = my.cq, .recv_cq = my.cq, .cap = { BATCH, 2 * BATCH, 1, 1, 0 } };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };
	struct { uint32_t qpn, key; uint64_t area; union ibv_gid gid; } mine, theirs;
	int masks[3] = { IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT, IBV_QP_STATE, IBV_QP_STATE | IBV_QP_SQ_PSN };

	init.qp_type = my.ud ? IBV_QPT_UD : IBV_QPT_UC;
	if (!(my.qp = ibv_create_qp(my.pd, &init)))
		die("ibv_create_qp: %s", strerror(errno));
	memset(&mine, 0, sizeof(mine));
	mine.qpn = my.qp->qp_num;
	mine.gid = my.gid;
	mine.key = my.mr->rkey;
	mine.area = (uintptr_t)my.area;
	if (write(my.side, &mine, sizeof(mine)) != sizeof(mine) ||
	    recv(my.side, &theirs, sizeof(theirs), MSG_WAITALL) != sizeof(theirs))
		die("the other process has ended");
	my.peer = theirs.qpn;
	my.peer_gid = theirs.gid;
	my.peer_key = theirs.key;
	my.peer_area = theirs.area;
	masks[0] |= my.ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS;
	masks[1] |= my.ud ? 0 : IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	while (128 << attr.path_mtu < my.mtu)
		attr.path_mtu++;
	attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
	attr.dest_qp_num = my.peer;
	attr.ah_attr.port_num = 1;
	attr.ah_attr.is_global = 1;
	attr.ah_attr.grh.dgid = my.peer_gid;
	attr.ah_attr.grh.sgid_index = opt.gid;
	for (int i = 0; i < 3; i++) {
		attr.qp_state = IBV_QPS_INIT + i;
		if (ibv_modify_qp(my.qp, &attr, masks[i]))
			die("ibv_modify_qp to state %d: %s", attr.qp_state, strerror(errno));
	}
}

/* A TCP connection to a host, or from any host. */
static int connection(const char *host, const char *port)
{
	struct addrinfo hints = { .ai_family = AF_INET, .ai_socktype = SOCK_STREAM, .ai_flags = host ? 0 : AI_PASSIVE }, *found;
	int error = getaddrinfo(host, port, &hints, &found), one = 1, made = -1, s;

	if (error)
		die("%s: %s", port, gai_strerror(error));
	s = socket(found->ai_family, SOCK_STREAM, 0);
	if (host && !connect(s, found->ai_addr, found->ai_addrlen))
		made = s;
	else if (!host && !setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) &&
		 !bind(s, found->ai_addr, found->ai_addrlen) && !listen(s, 1))
		made = accept(s, NULL, NULL);
	if (made < 0)
		die("port %s: %s", port, strerror(errno));
	freeaddrinfo(found);
	return made;
}

/* Connects the two processes. Returns nonzero in the receiver: the child's id, if there is a child. */
static int receives(int argc, char **argv)
{
	int sides[2], child;

	my.demand = argc == 5 && !strcmp(argv[4], "demand");
	if (argc != 4 + my.demand && argc != 6 && argc != 7)
		die("usage: unreliable uc|ud DEVICE GID [demand | MTU PORT [HOST]]");
	my.ud = !strcmp(argv[1], "ud");
	opt.device = argv[2];
	opt.gid = atoi(argv[3]);
	if (argc > 5) {
		my.mtu = atoi(argv[4]);
		my.silence = FAR_SILENCE_MS;
		my.batches = FAR_BATCHES;
		my.side = connection(argv[6], argv[5]);
		return argc == 6;
	}
	my.mtu = MTU;
	my.silence = SILENCE_MS;
	my.batches = BATCHES;
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, sides) || (child = fork()) < 0)
		die("cannot create a second process: %s", strerror(errno));
	my.side = sides[child == 0];
	close(sides[child != 0]);
	return child;
}

int main(int argc, char **argv)
{
	struct ibv_ah_attr path = { .port_num = 1, .is_global = 1 };
	int child = receives(argc, argv), status, arrived = 0;
	struct ibv_ah *ah = NULL;

	watch(60);
	my.context = open_device();
	my.pd = ibv_alloc_pd(my.context);
	my.cq = ibv_create_cq(my.context, 4 * BATCH, NULL, NULL, 0);
	my.area = mmap(NULL, AREA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	my.mr = ibv_reg_mr(my.pd, my.area, AREA, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
						   (my.demand ? IBV_ACCESS_ON_DEMAND : 0));
	if (!my.cq || !my.mr || ibv_query_gid(my.context, 1, opt.gid, &my.gid))
		die("cannot use the device: %s", strerror(errno));
	make_qp();
	path.grh.dgid = my.peer_gid;
	path.grh.sgid_index = opt.gid;
	if (my.ud && !(ah = ibv_create_ah(my.pd, &path)))
		die("ibv_create_ah: %s", strerror(errno));
	for (int slot = 0; child && slot < 2 * BATCH; slot++)
		receive(slot);
	notify();
	wait_for_peer();
	for (uint32_t first = 0; first < (uint32_t)(BATCH * my.batches); first += BATCH) {
		if (child) {
			wait_for_peer();
			arrived += receive_batch(first);
			give_back();
			notify();
		} else {
			give_back();
			send_batch(ah, first);
			notify();
			wait_for_peer();
		}
	}
	if ((ah && ibv_destroy_ah(ah)) || ibv_destroy_qp(my.qp) || ibv_destroy_cq(my.cq) || ibv_dereg_mr(my.mr) ||
	    ibv_dealloc_pd(my.pd) || ibv_close_device(my.context))
		die("cannot clean up: %s", strerror(errno));
	if (!child)
		return 0;
	if (argc < 6 && (waitpid(child, &status, 0) != child || status))
		die("the sender ended with status %x", status);
	printf("%d sent, %d arrived\n", BATCH * my.batches, arrived);
	return 0;
}
