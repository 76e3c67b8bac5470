/*
 * Out of memory: calls that create objects must return ENOMEM and not abort, existing objects can be destroyed, and
 * everything works again when there is memory. RLIMIT_AS takes the memory away in steps; then another thread does at
 * random.
 *
 * usage: memory_limit DEVICE GID_INDEX
 */
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fatal.h"
#include "setup.h"

enum { SIZE = 4096, MANY = 150, MIB = 1 << 20 };

static int passed, failed;

static int check(int condition, const char *what, int detail)
{
	if (condition)
		passed++;
	else {
		failed++;
		printf("FAILED: %s (%d)\n", what, detail);
	}
	return condition;
}

static const char *device;
static int gid_index;
static struct ibv_device *found;
static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static uint8_t *memory;
static int demand;

/* Functions that create and destroy objects of each kind. */

static void *make_pd(void) { return ibv_alloc_pd(context); }
static int end_pd(void *it) { return ibv_dealloc_pd(it); }
static void *make_channel(void) { return ibv_create_comp_channel(context); }
static int end_channel(void *it) { return ibv_destroy_comp_channel(it); }
static void *make_cq(void) { return ibv_create_cq(context, 500, NULL, NULL, 0); }
static int end_cq(void *it) { return ibv_destroy_cq(it); }
static void *make_large_cq(void) { return ibv_create_cq(context, 4194303, NULL, NULL, 0); }
static void *make_mr(void) { return ibv_reg_mr(pd, memory, SIZE, IBV_ACCESS_LOCAL_WRITE); }
static int end_mr(void *it) { return ibv_dereg_mr(it); }
static void *make_implicit(void) { return ibv_reg_mr(pd, NULL, SIZE_MAX, IBV_ACCESS_ON_DEMAND); }
static void *make_on_demand(void) { return ibv_reg_mr(pd, memory, SIZE, IBV_ACCESS_ON_DEMAND); }
static void *make_mw(void) { return ibv_alloc_mw(pd, IBV_MW_TYPE_2); }
static int end_mw(void *it) { return ibv_dealloc_mw(it); }
static int end_qp(void *it) { return ibv_destroy_qp(it); }
static int end_srq(void *it) { return ibv_destroy_srq(it); }
static int end_ah(void *it) { return ibv_destroy_ah(it); }
static int end_dm(void *it) { return ibv_free_dm(it); }
static int end_xrcd(void *it) { return ibv_close_xrcd(it); }
static void *make_context(void) { return ibv_open_device(found); }
static int end_context(void *it) { return ibv_close_device(it); }

static void *make_cq_ex(void)
{
	struct ibv_cq_init_attr_ex init = { .cqe = 100, .wc_flags = IBV_WC_STANDARD_FLAGS };
	struct ibv_cq_ex *it = ibv_create_cq_ex(context, &init);
	return it ? ibv_cq_ex_to_cq(it) : NULL;
}

static void *make_qp_of(enum ibv_qp_type type, uint32_t wrs, uint32_t sges)
{
	struct ibv_qp_init_attr init = { .qp_type = type, .send_cq = cq, .recv_cq = cq,
					 .cap = { wrs, wrs, sges, sges, 64 } };
	return ibv_create_qp(pd, &init);
}

static void *make_qp(void) { return make_qp_of(IBV_QPT_RC, 64, 4); }
static void *make_ud(void) { return make_qp_of(IBV_QPT_UD, 64, 4); }
static void *make_large_qp(void) { return make_qp_of(IBV_QPT_RC, 32768, 32); }

static void *make_built_qp(void)
{
	struct ibv_qp_init_attr_ex init = {
		.qp_type = IBV_QPT_RC, .send_cq = cq, .recv_cq = cq, .cap = { 64, 64, 4, 4, 64 }, .pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE,
	};
	return ibv_create_qp_ex(context, &init);
}

static void *make_srq_of(uint32_t wrs, uint32_t sges)
{
	struct ibv_srq_init_attr init = { .attr = { wrs, sges, 0 } };
	return ibv_create_srq(pd, &init);
}

static void *make_srq(void) { return make_srq_of(500, 4); }
static void *make_large_srq(void) { return make_srq_of(32768, 32); }

static void *make_ah(void)
{
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1 };
	CHECK(!ibv_query_gid(context, 1, gid_index, &attr.grh.dgid));
	attr.grh.sgid_index = gid_index;
	return ibv_create_ah(pd, &attr);
}

static void *make_dm(void)
{
	struct ibv_alloc_dm_attr attr = { .length = 512 };
	return ibv_alloc_dm(context, &attr);
}

static void *make_xrcd(void)
{
	struct ibv_xrcd_init_attr init = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1,
					   .oflags = O_CREAT };
	return ibv_open_xrcd(context, &init);
}

/* `large`: needs more than most of the limits leave. */
static const struct kind { const char *name; void *(*make)(void); int (*end)(void *); int large, on_demand; } kinds[] = {
	{ "PD", make_pd, end_pd, 0, 0 },
	{ "completion channel", make_channel, end_channel, 0, 0 },
	{ "CQ", make_cq, end_cq, 0, 0 },
	{ "extended CQ", make_cq_ex, end_cq, 0, 0 },
	{ "CQ of 4 million entries", make_large_cq, end_cq, 1, 0 },
	{ "region", make_mr, end_mr, 0, 0 },
	{ "ODP region", make_on_demand, end_mr, 0, 1 },
	{ "implicit region", make_implicit, end_mr, 0, 1 },
	{ "memory window", make_mw, end_mw, 0, 0 },
	{ "RC QP", make_qp, end_qp, 0, 0 },
	{ "UD QP", make_ud, end_qp, 0, 0 },
	{ "QP with built requests", make_built_qp, end_qp, 0, 0 },
	{ "QP of 32768 requests of 32 SGEs", make_large_qp, end_qp, 1, 0 },
	{ "SRQ", make_srq, end_srq, 0, 0 },
	{ "SRQ of 32768 requests of 32 SGEs", make_large_srq, end_srq, 1, 0 },
	{ "address handle", make_ah, end_ah, 0, 0 },
	{ "device memory", make_dm, end_dm, 0, 0 },
	{ "XRC domain", make_xrcd, end_xrcd, 0, 0 },
	{ "context", make_context, end_context, 0, 0 },
};
enum { KINDS = sizeof(kinds) / sizeof(*kinds) };

static void *made[KINDS][MANY];
static int counts[KINDS];

static size_t mapped(void)
{
	/* Read without stdio, which may have no memory for its buffers. */
	char text[64] = { 0 };
	int file = open("/proc/self/statm", O_RDONLY);
	CHECK(file >= 0 && read(file, text, sizeof(text) - 1) > 0);
	close(file);
	return strtoul(text, NULL, 10) * 4096;
}

/* As `mapped`, once it has not changed for 5 ms: a thread of the library that has just started maps twice what its heap
 * takes, and then unmaps half of it. */
static size_t settled(void)
{
	size_t now = mapped();

	for (int same = 0; same < 10;) {
		size_t before = now;
		usleep(500);
		now = mapped();
		same = now == before ? same + 1 : 0;
	}
	return now;
}

/* Allows `more` further bytes; SIZE_MAX removes the limit. */
static void allow(size_t more)
{
	struct rlimit limit = { RLIM_INFINITY, RLIM_INFINITY };

	CHECK(!getrlimit(RLIMIT_AS, &limit));
	limit.rlim_cur = more == SIZE_MAX ? limit.rlim_max : settled() + more;
	CHECK(!setrlimit(RLIMIT_AS, &limit));
}

/* Creates objects of all kinds in turn until no more can be created. Returns their number. */
static int make_all(void)
{
	int total = 0, going[KINDS];

	for (int k = 0; k < KINDS; k++) {
		counts[k] = 0;
		going[k] = !kinds[k].on_demand || demand;
	}
	for (int any = 1; any;) {
		any = 0;
		for (int k = 0; k < KINDS; k++) {
			if (!going[k] || counts[k] == MANY)
				continue;
			errno = 0;
			made[k][counts[k]] = kinds[k].make();
			if (made[k][counts[k]]) {
				counts[k]++;
				total++;
				any = 1;
				continue;
			}
			/* EAGAIN if the threads that resolve page faults cannot be created. */
			check(errno == ENOMEM || (kinds[k].on_demand && errno == EAGAIN), kinds[k].name, errno);
			going[k] = 0;
		}
	}
	return total;
}

static void end_all(void)
{
	for (int k = KINDS; k--;)
		while (counts[k])
			check(!kinds[k].end(made[k][--counts[k]]), kinds[k].name, -1);
}

static void connect_qp(struct ibv_qp *qp, uint32_t to)
{
	union ibv_gid gid;

	CHECK(!ibv_query_gid(context, 1, gid_index, &gid));
	CHECK(!rc_connect(qp, rc_attr(to, &gid, gid_index)));
}

/* A WRITE from one half of the memory to the other. */
static int transfer(struct ibv_qp *qp)
{
	static uint8_t value;
	struct ibv_sge sge = { (uintptr_t)memory, SIZE / 2, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				  .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct ibv_wc wc;

	memset(memory, ++value, SIZE / 2);
	wr.wr.rdma.remote_addr = (uintptr_t)memory + SIZE / 2;
	wr.wr.rdma.rkey = mr->rkey;
	CHECK(!ibv_post_send(qp, &wr, &bad));
	while (!ibv_poll_cq(cq, 1, &wc))
		;
	return wc.status == IBV_WC_SUCCESS && memory[SIZE - 1] == value;
}

/* A transfer between two new QPs, connected to each other. */
static void transfer_anew(void)
{
	struct ibv_qp *pair[2] = { make_qp(), make_qp() };

	CHECK(pair[0] && pair[1]);
	connect_qp(pair[0], pair[1]->qp_num);
	connect_qp(pair[1], pair[0]->qp_num);
	check(transfer(pair[0]), "a transfer of new QPs", -1);
	for (int i = 0; i < 2; i++)
		check(!ibv_destroy_qp(pair[i]), "ibv_destroy_qp", errno);
}

/* Opens the device in a child with `more` bytes of memory; the child must end normally whether that is enough or
 * not. */
static int opened(size_t more)
{
	int status;
	pid_t child = fork();

	CHECK(child >= 0);
	if (!child) {
		allow(more);
		errno = 0;
		struct ibv_context *new = ibv_open_device(found);
		_exit(new ? 0 : errno == ENOMEM || errno == EAGAIN ? 1 : 2);
	}
	CHECK(waitpid(child, &status, 0) == child);
	check(WIFEXITED(status) && WEXITSTATUS(status) < 2, "opening a device ends without a crash", status);
	return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static atomic_int phase;
enum { WAITING, EXHAUSTING, ENDED };

/* While EXHAUSTING: repeatedly takes all memory that is left, and frees it again. */
static void *exhaust_memory(void *nothing)
{
	static void *taken[256];

	while (atomic_load(&phase) == WAITING)
		usleep(100);
	while (atomic_load(&phase) == EXHAUSTING) {
		int count = 0;
		for (; count < 256; count++) {
			taken[count] = mmap(NULL, MIB / 4, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
			if (taken[count] == MAP_FAILED)
				break;
		}
		while (count)
			munmap(taken[--count], MIB / 4);
	}
	return nothing;
}

int main(int argc, char **argv)
{
	static const size_t steps[] = { 0, 1, 2, 4, 8, 9, 10, 12, 16, 24, 40, 64 };
	static const size_t openings[] = { 0, 4, 16, 32, 33, 34, 36, 40, 64, 128, 1024 };
	struct ibv_device_attr_ex attr;
	struct ibv_device **list;
	struct ibv_qp *pair[2];
	struct ibv_cq *resized;
	struct ibv_srq *srq;
	int some = 0, none = 0, all_opened = 1;
	pthread_t other;

	if (argc != 3)
		return 2;
	setvbuf(stdout, NULL, _IONBF, 0);
	device = argv[1];
	gid_index = atoi(argv[2]);
	list = ibv_get_device_list(NULL);
	for (int i = 0; list && list[i]; i++)
		if (!strcmp(ibv_get_device_name(list[i]), device))
			found = list[i];
	CHECK(found);
	for (size_t s = 0; s < sizeof(openings) / sizeof(*openings); s++) {
		int ended = opened(openings[s] * MIB);
		check(s || !ended, "opening a device fails without memory", -1);
		all_opened = ended;
	}
	check(all_opened, "opening a device succeeds with a gigabyte", -1);

	CHECK(context = ibv_open_device(found));
	CHECK(!ibv_query_device_ex(context, NULL, &attr));
	demand = attr.odp_caps.general_caps != 0;
	CHECK((pd = ibv_alloc_pd(context)) && (cq = ibv_create_cq(context, 64, NULL, NULL, 0)));
	CHECK(memory = aligned_alloc(SIZE, SIZE));
	CHECK(mr = ibv_reg_mr(pd, memory, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
	CHECK((pair[0] = make_qp()) && (pair[1] = make_qp()));
	connect_qp(pair[0], pair[1]->qp_num);
	connect_qp(pair[1], pair[0]->qp_num);
	check(transfer(pair[0]), "a transfer", -1);
	CHECK((resized = ibv_create_cq(context, 10, NULL, NULL, 0)) && (srq = make_srq_of(10, 32)));

	for (size_t s = 0; s < sizeof(steps) / sizeof(*steps); s++) {
		struct ibv_srq_attr larger = { .max_wr = 32768 };

		allow(steps[s] * MIB);
		if (make_all())
			some++;
		else
			none++;
		for (int k = 0; k < KINDS; k++)
			check(!counts[k] || !kinds[k].large || steps[s] >= 16, kinds[k].name, (int)steps[s]);
		check(ibv_resize_cq(resized, 4194303) == ENOMEM, "ibv_resize_cq", (int)steps[s]);
		if (steps[s] < 16)
			check(ibv_modify_srq(srq, &larger, IBV_SRQ_MAX_WR) == ENOMEM, "ibv_modify_srq", (int)steps[s]);
		check(transfer(pair[0]), "a transfer without memory", (int)steps[s]);
		end_all();
		allow(SIZE_MAX);
		check(transfer(pair[0]), "a transfer with memory again", (int)steps[s]);
		transfer_anew();
	}
	check(some && none, "some limits leave memory for objects and some do not", some);

	for (int round = 0; round < 5; round++) {
		atomic_store(&phase, WAITING);
		CHECK(!pthread_create(&other, NULL, exhaust_memory, NULL));
		allow(20 * MIB);
		atomic_store(&phase, EXHAUSTING);
		for (int again = 0; again < 20; again++) {
			make_all();
			end_all();
		}
		atomic_store(&phase, ENDED);
		pthread_join(other, NULL);
		allow(SIZE_MAX);
		check(transfer(pair[0]), "a transfer after memory was taken away", round);
		transfer_anew();
	}
	check(!ibv_destroy_cq(resized) && !ibv_destroy_srq(srq), "ibv_destroy_cq, ibv_destroy_srq", errno);
	printf("%d passed, %d failed\n", passed, failed);
	return failed != 0;
}
