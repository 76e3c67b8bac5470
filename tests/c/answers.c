/*
 * Checks how calls react to objects that do not exist and to masks and sizes of other releases: as rdma-core and its
 * driver for ConnectX do.
 *
 *   answers [device]
 *
 * Prints failures and a last line "N passed, M failed".
 */
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "setup.h"

static int passed, failed;
static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;

static void check(bool good, const char *what)
{
	good ? passed++ : failed++;
	if (!good)
		printf("failed: %s (errno %d, %s)\n", what, errno, strerror(errno));
}

static void devices(void)
{
	struct verbs_context *verbs = verbs_get_ctx_op(context, query_device_ex);
	struct ibv_query_device_ex_input input = { .comp_mask = 1 };
	struct ibv_device_attr_ex attr;
	unsigned char *byte = (unsigned char *)&attr;

	memset(&attr, 0x5a, sizeof attr);
	check(verbs->query_device_ex(context, NULL, &attr, sizeof attr.orig_attr - 1) == EINVAL, "too small a size");
	check(byte[0] == 0x5a, "the buffer was filled");
	check(!verbs->query_device_ex(context, NULL, &attr, sizeof attr.orig_attr), "the size of the first release");
	check(attr.orig_attr.max_qp > 0 && byte[sizeof attr.orig_attr] == 0x5a, "that many bytes are filled");
	check(!ibv_query_device_ex(context, NULL, &attr) && attr.comp_mask == 0, "the whole structure");
	check(ibv_query_device_ex(context, &input, &attr) == EINVAL, "an input of another release");
}

static void clocks(void)
{
	struct ibv_values_ex values = { .comp_mask = IBV_VALUES_MASK_RAW_CLOCK, .raw_clock.tv_sec = 77 };
	struct ibv_device_attr_ex attr;
	struct timespec now;
	long long ns;

	check(!ibv_query_rt_values_ex(context, &values), "the clock");
	clock_gettime(CLOCK_MONOTONIC, &now);
	ns = now.tv_sec * 1000000000LL + now.tv_nsec - values.raw_clock.tv_nsec;
	/* Programs read the adapter's counter from tv_nsec only. */
	check(values.raw_clock.tv_sec == 0 && ns >= 0 && ns < 1000000000, "a counter in tv_nsec");
	check(values.comp_mask == IBV_VALUES_MASK_RAW_CLOCK, "comp_mask has the raw clock");
	check(!ibv_query_device_ex(context, NULL, &attr) && attr.hca_core_clock == 1000000, "a clock in nanoseconds");
	values.comp_mask = 1 << 5;
	check(ibv_query_rt_values_ex(context, &values) == EINVAL, "an unknown value");
}

static void queue_pairs(void)
{
	struct ibv_qp_cap cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 };
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .cap = cap, .qp_type = IBV_QPT_RC };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };

	if (!qp) {
		check(false, "ibv_create_qp");
		return;
	}
	check(ibv_modify_qp(qp, &attr, IBV_QP_STATE | 1 << 21) == EOPNOTSUPP, "an unknown attribute");
	check(ibv_modify_qp(qp, &attr, IBV_QP_STATE | 1 << 30) == EOPNOTSUPP, "another unknown attribute");
	check(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == EINVAL, "a required attribute is missing");
	check(!ibv_query_qp(qp, &attr, 0x1ffffff, &init) && attr.qp_state == IBV_QPS_RESET, "a query, unknown bits");
	ibv_destroy_qp(qp);
}

static void shared_queues(void)
{
	/* ibv_create_srq must ignore the limit. */
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 4, .max_sge = 1, .srq_limit = 3 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &init);
	struct ibv_srq_attr attr = { .srq_limit = 2 };

	check(srq && !ibv_query_srq(srq, &attr) && attr.srq_limit == 0, "a new queue has no limit");
	check(init.attr.max_wr >= 4 && init.attr.max_sge >= 1, "the sizes of the new queue");
	init.attr.srq_limit = 1000;
	if (srq)
		ibv_destroy_srq(srq);
	srq = ibv_create_srq(pd, &init);
	check(srq, "an invalid limit");
	if (srq)
		ibv_destroy_srq(srq);
}

static void domains(void)
{
	struct ibv_xrcd_init_attr init = { .comp_mask = 0xff, .fd = -1, .oflags = O_CREAT };
	struct ibv_parent_domain_init_attr parent = { .pd = pd, .comp_mask = 1 << 20 };
	struct ibv_qp_open_attr open = { .comp_mask = 0xff, .qp_type = IBV_QPT_XRC_RECV };
	struct ibv_xrcd *xrcd;

	check(!ibv_open_xrcd(context, &init) && errno == EOPNOTSUPP, "a domain with an unknown attribute");
	init.comp_mask = IBV_XRCD_INIT_ATTR_FD;
	check(!ibv_open_xrcd(context, &init) && errno == EINVAL, "a domain without flags");
	init.comp_mask |= IBV_XRCD_INIT_ATTR_OFLAGS;
	xrcd = open.xrcd = ibv_open_xrcd(context, &init);
	check(xrcd, "ibv_open_xrcd");
	check(!ibv_open_qp(context, &open) && errno == EOPNOTSUPP, "a target with an unknown attribute");
	open.comp_mask = IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
	check(!ibv_open_qp(context, &open) && errno == EINVAL, "a target without a number");
	check(!xrcd || !ibv_close_xrcd(xrcd), "ibv_close_xrcd");
	check(!ibv_alloc_parent_domain(context, &parent) && errno == EINVAL, "a parent domain, unknown attribute");
}

static void completion_queues(void)
{
	struct ibv_modify_cq_attr modify = { .attr_mask = 2 };

	check(ibv_modify_cq(cq, &modify) == EINVAL, "an unknown attribute of a CQ");
	check(!ibv_create_cq(context, 0, NULL, NULL, 0) && errno == EINVAL, "a CQ without entries");
	check(!ibv_create_cq(context, 1, NULL, NULL, context->num_comp_vectors) && errno == EINVAL, "an unknown vector");
}

int main(int argc, char **argv)
{
	context = device_open(argc > 1 ? argv[1] : NULL);
	if (!context) {
		fprintf(stderr, "no such device\n");
		return 1;
	}
	pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	devices();
	clocks();
	queue_pairs();
	shared_queues();
	domains();
	completion_queues();
	check(!ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context), "closing");
	printf("%d passed, %d failed\n", passed, failed);
	return failed != 0;
}
