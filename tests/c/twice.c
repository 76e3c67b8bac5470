/* Objects are destroyed twice, in any order, after their device, and by two threads at once: each is destroyed once, every
 * other call fails with EINVAL, and an object that others need with EBUSY.
 *
 *   twice DEVICE [SEED] [ROUNDS] */
#include "check.h"
#include "setup.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>

enum kind { PD, TD, DOMAIN, CHANNEL, CQ, SRQ, QP, MR, MW, AH, XRCD, DM, COUNTERS, WQ, TABLE, KINDS };

static const char *const names[KINDS] = { "PD",  "thread domain", "parent domain", "channel",  "CQ", "SRQ", "QP",   "MR",
					  "MW",  "AH",            "XRCD",          "DM",       "counters", "WQ", "table" };

static struct ibv_context *context;
static union ibv_gid gid;
static int gid_index;
static unsigned char memory[4096];

static uint64_t state;

static unsigned pick(unsigned below)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (state >> 16) % below;
}

/* One object of each kind; NULL where the device has none. */
struct set {
	void *of[KINDS];
};

static void *create(struct set *set, enum kind kind)
{
	struct ibv_qp_init_attr qp = { .qp_type = IBV_QPT_RC, .send_cq = set->of[CQ], .recv_cq = set->of[CQ], .srq = set->of[SRQ],
				       .cap = { .max_send_wr = 2, .max_send_sge = 1 } };
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 2, .max_sge = 1 } };
	struct ibv_ah_attr ah = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .sgid_index = gid_index } };
	struct ibv_xrcd_init_attr xrcd = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1,
					   .oflags = O_CREAT };
	struct ibv_td_init_attr td = { 0 };
	struct ibv_parent_domain_init_attr domain = { .pd = set->of[PD], .td = set->of[TD] };
	struct ibv_alloc_dm_attr dm = { .length = 64 };
	struct ibv_counters_init_attr counters = { 0 };
	struct ibv_wq_init_attr wq = { .wq_type = IBV_WQT_RQ, .max_wr = 2, .max_sge = 1, .pd = set->of[PD], .cq = set->of[CQ] };
	struct ibv_wq *wqs[1] = { set->of[WQ] };
	struct ibv_rwq_ind_table_init_attr table = { .ind_tbl = wqs };

	switch (kind) {
	case PD: return ibv_alloc_pd(context);
	case DOMAIN: return ibv_alloc_parent_domain(context, &domain);
	case TD: return ibv_alloc_td(context, &td);
	case CHANNEL: return ibv_create_comp_channel(context);
	case CQ: return ibv_create_cq(context, 4, NULL, set->of[CHANNEL], 0);
	case SRQ: return ibv_create_srq(set->of[PD], &srq);
	case QP: return ibv_create_qp(set->of[PD], &qp);
	case MR: return ibv_reg_mr(set->of[PD], memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	case MW: return ibv_alloc_mw(set->of[PD], IBV_MW_TYPE_1);
	case AH: return ibv_create_ah(set->of[PD], &ah);
	case XRCD: return ibv_open_xrcd(context, &xrcd);
	case DM: return ibv_alloc_dm(context, &dm);
	case COUNTERS: return ibv_create_counters(context, &counters);
	case WQ: return ibv_create_wq(context, &wq);
	case TABLE: return ibv_create_rwq_ind_table(context, &table);
	default: return NULL;
	}
}

static int destroy(enum kind kind, void *object)
{
	switch (kind) {
	case PD:
	case DOMAIN: return ibv_dealloc_pd(object);
	case TD: return ibv_dealloc_td(object);
	case CHANNEL: return ibv_destroy_comp_channel(object);
	case CQ: return ibv_destroy_cq(object);
	case SRQ: return ibv_destroy_srq(object);
	case QP: return ibv_destroy_qp(object);
	case MR: return ibv_dereg_mr(object);
	case MW: return ibv_dealloc_mw(object);
	case AH: return ibv_destroy_ah(object);
	case XRCD: return ibv_close_xrcd(object);
	case DM: return ibv_free_dm(object);
	case COUNTERS: return ibv_destroy_counters(object);
	case WQ: return ibv_destroy_wq(object);
	case TABLE: return ibv_destroy_rwq_ind_table(object);
	default: return -1;
	}
}

/* Whether an object that exists needs this one, so that it cannot be destroyed. */
static int is_needed(const struct set *set, enum kind kind)
{
	switch (kind) {
	case PD: return set->of[DOMAIN] || set->of[SRQ] || set->of[QP] || set->of[MR] || set->of[MW] || set->of[AH] || set->of[WQ];
	case TD: return !!set->of[DOMAIN];
	case CHANNEL: return !!set->of[CQ];
	case CQ: return set->of[QP] || set->of[WQ];
	case SRQ: return !!set->of[QP];
	case WQ: return !!set->of[TABLE];
	default: return 0;
	}
}

static int open_device(const char *name)
{
	context = device_open(name);
	if (!check(context != NULL, "cannot open the device"))
		return 0;
	gid_index = best_gid(context, 1);
	return check(!ibv_query_gid(context, 1, gid_index, &gid), "no GID");
}

static void create_all(struct set *set)
{
	for (enum kind kind = 0; kind < KINDS; kind++)
		check((set->of[kind] = create(set, kind)) != NULL, "create: %s", names[kind]);
}

/* Destroys in random order until none is left, each object a second time as well. Their device may be closed. */
static void destroy_all(struct set *set, int closed, uint64_t seed)
{
	void *gone[KINDS] = { NULL };
	int left = KINDS;

	while (left) {
		enum kind kind = pick(KINDS);
		void *object = set->of[kind];
		int result;

		if (gone[kind]) {
			result = destroy(kind, gone[kind]);
			check(result == EINVAL, "seed %lu: %s twice: %d", (unsigned long)seed, names[kind], result);
			continue;
		}
		result = destroy(kind, object);
		/* Their QP does not need them any more when it was destroyed with its device. */
		if (result == EBUSY && is_needed(set, kind))
			continue;
		if (!check(!result && (closed || !is_needed(set, kind)), "seed %lu: %s: %d", (unsigned long)seed,
			   names[kind], result))
			return;
		gone[kind] = object;
		set->of[kind] = NULL;
		left--;
	}
	if (gone[QP]) {
		struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
		struct ibv_qp_init_attr init;

		check(ibv_modify_qp(gone[QP], &attr, IBV_QP_STATE) == EINVAL, "modify a destroyed QP");
		check(ibv_query_qp(gone[QP], &attr, IBV_QP_STATE, &init) == EINVAL, "query a destroyed QP");
		check(ibv_resize_cq(gone[CQ], 10) == EINVAL, "resize a destroyed CQ");
		check(!ibv_reg_mr(gone[PD], memory, 1, 0) && errno == EINVAL, "register in a destroyed PD");
		check(!ibv_create_ah(gone[PD], &(struct ibv_ah_attr){ .port_num = 1 }) && errno == EINVAL, "AH in a destroyed PD");
	}
}

struct racer {
	pthread_barrier_t *together;
	enum kind kind;
	void *object;
	int result;
};

static void *race(void *argument)
{
	struct racer *racer = argument;

	pthread_barrier_wait(racer->together);
	racer->result = destroy(racer->kind, racer->object);
	return NULL;
}

/* Two threads destroy each object at once. */
static void two_threads(struct set *set)
{
	pthread_barrier_t together;

	pthread_barrier_init(&together, NULL, 2);
	for (int kind = KINDS - 1; kind >= 0; kind--) {
		struct racer racers[2] = { { &together, kind, set->of[kind], -1 }, { &together, kind, set->of[kind], -1 } };
		pthread_t other;

		if (pthread_create(&other, NULL, race, &racers[1]))
			exit(1);
		race(&racers[0]);
		pthread_join(other, NULL);
		check(racers[0].result + racers[1].result == EINVAL && racers[0].result * racers[1].result == 0,
		      "%s by two threads: %d and %d", names[kind], racers[0].result, racers[1].result);
		set->of[kind] = NULL;
	}
	pthread_barrier_destroy(&together);
}

int main(int argc, char **argv)
{
	const char *name = argc > 1 ? argv[1] : NULL;
	uint64_t first = argc > 2 ? strtoull(argv[2], NULL, 0) : 1;
	int rounds = argc > 3 ? atoi(argv[3]) : 100;
	struct set set = { { NULL } };

	if (!open_device(name))
		return 1;
	for (int round = 0; round < rounds && !failed; round++) {
		state = (first + round) * 0x9e3779b97f4a7c15 | 1;
		create_all(&set);
		if (round % 4 == 3) {
			two_threads(&set);
		} else if (round % 4 == 2) {
			struct ibv_context *closed = context;

			check(!ibv_close_device(closed), "close a device with objects");
			check(ibv_close_device(closed) == EINVAL, "close it twice");
			check(!ibv_alloc_pd(closed) && errno == EINVAL, "a PD of a closed device");
			destroy_all(&set, 1, first + round);
			check(ibv_close_device(closed) == EINVAL, "close it again");
			if (!open_device(name))
				return 1;
		} else {
			destroy_all(&set, 0, first + round);
		}
	}
	check(!ibv_close_device(context), "close the device");
	printf("%d passed, %d failed\n", passed, failed);
	return !!failed;
}
