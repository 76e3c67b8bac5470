/* A READ, and a WRITE or an atomic to the same place behind it, on one QP and without a fence, between two processes:
 * the READ must return what was there before.
 *
 *   read_order DEVICE GID [SIZE [ROUNDS]]
 *
 * Both processes post at the same time. Each round posts eight pairs of READ and WRITE (or fetch-and-add), so that each
 * READ also shows whether the WRITE before it was executed. Prints how many READs returned older or later bytes. */
#include "threads_rig.h"

enum { PAIRS = 8, SIZE = 8, ROUNDS = 625 };

static struct {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	/* The place that the peer uses; what the WRITEs send, one value after another; what the READs return. */
	uint8_t *place, *sources, *results;
	union ibv_gid gid;
	uint32_t peer, peer_key;
	uint64_t peer_place;
	size_t size;
	long older, later;
	int side;
} my;

static void meet(void)
{
	char word;

	if (write(my.side, "", 1) != 1 || read(my.side, &word, 1) != 1)
		die("the other process has ended");
}

static void make_qp(void)
{
	struct { uint32_t qpn, key; uint64_t place; union ibv_gid gid; } mine, theirs;

	memset(&mine, 0, sizeof(mine));
	my.qp = create_qp(my.pd, my.cq, my.cq, 2 * PAIRS);
	mine.qpn = my.qp->qp_num;
	mine.key = my.mr->rkey;
	mine.place = (uintptr_t)my.place;
	mine.gid = my.gid;
	if (write(my.side, &mine, sizeof(mine)) != sizeof(mine) ||
	    recv(my.side, &theirs, sizeof(theirs), MSG_WAITALL) != sizeof(theirs))
		die("the other process has ended");
	my.peer_key = theirs.key;
	my.peer_place = theirs.place;
	if (connect_qp(my.qp, theirs.qpn, &theirs.gid))
		die("ibv_modify_qp: %s", strerror(errno));
}

/* The bytes of a place that hold value `n`: its first word says how many WRITEs and atomics came before. */
static void fill(uint8_t *at, uint64_t n)
{
	memset(at + sizeof(n), (uint8_t)n, my.size - sizeof(n));
	memcpy(at, &n, sizeof(n));
}

static void check_read(const uint8_t *got, uint64_t n)
{
	uint64_t found;
	size_t at = sizeof(found);

	memcpy(&found, got, sizeof(found));
	while (at < my.size && got[at] == (uint8_t)n)
		at++;
	if (found == n && at == my.size)
		return;
	if (found < n || (at < my.size && (uint8_t)(got[at] - n) > 0x80))
		my.older++;
	else
		my.later++;
}

/* Posts pairs of READ and WRITE, or fetch-and-add, in one call. Before them the place has value `n`. */
static void round_of_pairs(uint64_t n, int atomic)
{
	struct ibv_sge sges[2 * PAIRS];
	struct ibv_send_wr wrs[2 * PAIRS], *bad;
	struct ibv_wc wc;

	memset(wrs, 0, sizeof(wrs));
	for (int i = 0; i < 2 * PAIRS; i++) {
		struct ibv_send_wr *wr = wrs + i;
		uint8_t *local = (i % 2 ? my.sources : my.results) + i / 2 * my.size;

		sges[i] = (struct ibv_sge){ (uintptr_t)local, my.size, my.mr->lkey };
		wr->wr_id = i;
		wr->next = i + 1 < 2 * PAIRS ? wr + 1 : NULL;
		wr->sg_list = sges + i;
		wr->num_sge = 1;
		wr->opcode = i % 2 ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ;
		wr->wr.rdma.remote_addr = my.peer_place;
		wr->wr.rdma.rkey = my.peer_key;
		if (i % 2 && atomic) {
			wr->opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
			wr->wr.atomic.remote_addr = my.peer_place;
			wr->wr.atomic.rkey = my.peer_key;
			wr->wr.atomic.compare_add = 1;
		} else if (i % 2) {
			fill(local, n + i / 2 + 1);
		}
	}
	if (ibv_post_send(my.qp, wrs, &bad))
		die("ibv_post_send");
	for (int i = 0; i < 2 * PAIRS; i++) {
		int found;

		while ((found = ibv_poll_cq(my.cq, 1, &wc)) == 0)
			;
		if (found < 0 || wc.status || wc.wr_id != (uint64_t)i)
			die("request %d of a round: %s", i, found < 0 ? "no completion" : ibv_wc_status_str(wc.status));
	}
	for (int i = 0; i < PAIRS; i++)
		check_read(my.results + i * my.size, n + i);
}

int main(int argc, char **argv)
{
	long rounds, counts[2] = { 0 };
	int sides[2], child, status;
	size_t all;
	uint64_t n = 0;

	if (argc < 3 || argc > 5)
		die("usage: read_order DEVICE GID [SIZE [ROUNDS]]");
	opt.device = argv[1];
	opt.gid = atoi(argv[2]);
	my.size = argc > 3 ? atoi(argv[3]) : SIZE;
	rounds = argc > 4 ? atol(argv[4]) : ROUNDS;
	if (my.size < 8 || my.size > 1 << 20 || rounds < 1)
		die("a size from 8 to 1048576, and at least a round");
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, sides) || (child = fork()) < 0)
		die("cannot create a second process: %s", strerror(errno));
	my.side = sides[child == 0];
	close(sides[child != 0]);
	watch(100);
	my.context = open_device();
	my.pd = ibv_alloc_pd(my.context);
	my.cq = ibv_create_cq(my.context, 4 * PAIRS, NULL, NULL, 0);
	all = my.size * (2 * PAIRS + 1);
	my.place = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	my.sources = my.place + my.size;
	my.results = my.sources + PAIRS * my.size;
	my.mr = ibv_reg_mr(my.pd, my.place, all, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
							 IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
	if (!my.cq || !my.mr || ibv_query_gid(my.context, 1, opt.gid, &my.gid))
		die("cannot use the device: %s", strerror(errno));
	make_qp();
	meet();
	for (long i = 0; i < rounds; i++, n += PAIRS)
		round_of_pairs(n, 0);
	/* An atomic changes eight bytes. */
	for (long i = 0; my.size == 8 && i < rounds; i++, n += PAIRS)
		round_of_pairs(n, 1);
	/* Until both are ready, each one's adapter must respond. */
	meet();
	if (ibv_destroy_qp(my.qp) || ibv_destroy_cq(my.cq) || ibv_dereg_mr(my.mr) || ibv_dealloc_pd(my.pd) ||
	    ibv_close_device(my.context))
		die("cannot clean up: %s", strerror(errno));
	counts[0] = my.older;
	counts[1] = my.later;
	if (!child) {
		if (write(my.side, counts, sizeof(counts)) != sizeof(counts))
			die("the other process has ended");
		_exit(0);
	}
	if (recv(my.side, counts, sizeof(counts), MSG_WAITALL) != sizeof(counts) || waitpid(child, &status, 0) != child ||
	    status)
		die("the other process failed");
	printf("%lu READs, %ld returned older bytes, %ld later bytes\n", 2 * n, my.older + counts[0], my.later + counts[1]);
	return 0;
}
