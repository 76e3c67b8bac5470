/*
 * attributes: what ibv_query_device and ibv_query_device_ex show is what the command line says, and ibv_modify_qp has
 * these limits of READs and atomics.
 *
 *   attributes DEVICE GID-INDEX MAX_QP_RD_ATOM MAX_QP_INIT_RD_ATOM LOCAL_CA_ACK_DELAY GENERAL RC UC UD XRC
 *
 * The last five are ODP capabilities. Prints failures, and a last line "N passed, M failed".
 */
#include "setup.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

static int passed, failed;

static void is(uint64_t got, uint64_t wanted, const char *what)
{
	if (got != wanted)
		printf("%s: %llu, not %llu\n", what, (unsigned long long)got, (unsigned long long)wanted);
	if (got == wanted)
		passed++;
	else
		failed++;
}

/* A limit is allowed, and more is invalid. */
static void limits(struct ibv_context *context, int gid_index, int responder, int initiator)
{
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 1, NULL, NULL, 0);
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
					 .cap = { .max_send_wr = 1, .max_recv_wr = 1 } };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	struct ibv_qp_attr attr;
	union ibv_gid gid;

	if (!qp || ibv_query_gid(context, 1, gid_index, &gid)) {
		printf("no QP or no GID\n");
		exit(2);
	}
	attr = rc_attr(qp->qp_num, &gid, gid_index);
	is(rc_to_init(qp, attr), 0, "to INIT");
	attr.max_dest_rd_atomic = responder + 1;
	is(rc_to_rtr(qp, attr), EINVAL, "to RTR with more than max_qp_rd_atom");
	attr.max_dest_rd_atomic = responder;
	is(rc_to_rtr(qp, attr), 0, "to RTR with max_qp_rd_atom");
	attr.max_rd_atomic = initiator + 1;
	is(rc_to_rts(qp, attr), EINVAL, "to RTS with more than max_qp_init_rd_atom");
	attr.max_rd_atomic = initiator;
	is(rc_to_rts(qp, attr), 0, "to RTS with max_qp_init_rd_atom");
	is(ibv_destroy_qp(qp) || ibv_destroy_cq(cq) || ibv_dealloc_pd(pd), 0, "destroying");
}

int main(int argc, char **argv)
{
	struct ibv_device_attr_ex ex = {};
	struct ibv_device_attr attr;
	struct ibv_context *context;
	uint64_t wanted[10] = {};

	for (int i = 2; i < argc && i < 12; i++)
		wanted[i - 2] = strtoull(argv[i], NULL, 0);
	context = argc == 11 ? device_open(argv[1]) : NULL;
	if (!context || ibv_query_device(context, &attr) || ibv_query_device_ex(context, NULL, &ex)) {
		printf("usage: see the comment at the top of tests/c/attributes.c\n");
		return 2;
	}
	is(attr.max_qp_rd_atom, wanted[1], "max_qp_rd_atom");
	is(attr.max_qp_init_rd_atom, wanted[2], "max_qp_init_rd_atom");
	is(attr.local_ca_ack_delay, wanted[3], "local_ca_ack_delay");
	is(ex.orig_attr.max_qp_rd_atom, wanted[1], "max_qp_rd_atom of ibv_query_device_ex");
	is(ex.orig_attr.max_qp_init_rd_atom, wanted[2], "max_qp_init_rd_atom of ibv_query_device_ex");
	is(ex.orig_attr.local_ca_ack_delay, wanted[3], "local_ca_ack_delay of ibv_query_device_ex");
	is(ex.odp_caps.general_caps, wanted[4], "general_caps");
	is(ex.odp_caps.per_transport_caps.rc_odp_caps, wanted[5], "rc_odp_caps");
	is(ex.odp_caps.per_transport_caps.uc_odp_caps, wanted[6], "uc_odp_caps");
	is(ex.odp_caps.per_transport_caps.ud_odp_caps, wanted[7], "ud_odp_caps");
	is(ex.xrc_odp_caps, wanted[8], "xrc_odp_caps");
	limits(context, wanted[0], wanted[1], wanted[2]);
	is(ibv_close_device(context), 0, "closing");
	printf("%d passed, %d failed\n", passed, failed);
	return failed != 0;
}
