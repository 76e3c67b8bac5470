/* What every program does before its first work request: it opens a device, and moves an RC QP from RESET to RTS. These
 * functions report errors; the program decides what becomes of them. */
#ifndef SETUP_H
#define SETUP_H

#include <infiniband/verbs.h>
#include <stdint.h>
#include <string.h>

/* The device with this name; NULL: the first. Returns NULL if there is none. */
static inline struct ibv_context *device_open(const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = NULL;

	for (int i = 0; list && list[i] && !context; i++)
		if (!name || !strcmp(ibv_get_device_name(list[i]), name))
			context = ibv_open_device(list[i]);
	if (list)
		ibv_free_device_list(list);
	return context;
}

/* The best GID of a port: RoCE v2 with IPv4, else RoCE v2, else any; -1 if it has none. */
static inline int best_gid(struct ibv_context *context, int ib_port)
{
	static const uint8_t mapped[12] = { [10] = 0xff, [11] = 0xff };
	struct ibv_port_attr port;
	struct ibv_gid_entry entry;
	int best = -1, score = 0;

	if (ibv_query_port(context, ib_port, &port))
		return -1;
	for (int i = 0; i < port.gid_tbl_len; i++) {
		int s = 1;

		if (ibv_query_gid_ex(context, ib_port, i, &entry, 0))
			continue;
		if (entry.gid_type == IBV_GID_TYPE_ROCE_V2)
			s = memcmp(entry.gid.raw, mapped, 12) ? 2 : 3;
		if (s > score) {
			score = s;
			best = i;
		}
	}
	return best;
}

/* All attributes of an RC QP up to RTS, connected to QP `to` at `gid`; a program changes what it tests. */
static inline struct ibv_qp_attr rc_attr(uint32_t to, const union ibv_gid *gid, int gid_index)
{
	return (struct ibv_qp_attr){
		.port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
		.path_mtu = IBV_MTU_1024, .dest_qp_num = to, .max_dest_rd_atomic = 4, .min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1,
			     .grh = { .dgid = *gid, .sgid_index = gid_index, .hop_limit = 64 } },
		.timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 4,
	};
}

/* These return the error of ibv_modify_qp. */

static inline int rc_to_init(struct ibv_qp *qp, struct ibv_qp_attr attr)
{
	attr.qp_state = IBV_QPS_INIT;
	return ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

static inline int rc_to_rtr(struct ibv_qp *qp, struct ibv_qp_attr attr)
{
	attr.qp_state = IBV_QPS_RTR;
	return ibv_modify_qp(qp, &attr,
			     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

static inline int rc_to_rts(struct ibv_qp *qp, struct ibv_qp_attr attr)
{
	attr.qp_state = IBV_QPS_RTS;
	return ibv_modify_qp(qp, &attr,
			     IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				     IBV_QP_MAX_QP_RD_ATOMIC);
}

/* From RESET to RTS. */
static inline int rc_connect(struct ibv_qp *qp, struct ibv_qp_attr attr)
{
	int error = rc_to_init(qp, attr);

	if (!error)
		error = rc_to_rtr(qp, attr);
	return error ? error : rc_to_rts(qp, attr);
}

/* A UD QP, from RESET to RTS. */
static inline int ud_start(struct ibv_qp *qp, uint32_t qkey)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = qkey };
	int error = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);

	attr.qp_state = IBV_QPS_RTR;
	if (!error)
		error = ibv_modify_qp(qp, &attr, IBV_QP_STATE);
	attr.qp_state = IBV_QPS_RTS;
	return error ? error : ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN);
}

#endif
