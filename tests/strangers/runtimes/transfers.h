/* What programs of other languages call: WRITEs of a QP to itself, of pinned and of on-demand memory. */
#ifndef TRANSFERS_H
#define TRANSFERS_H

#include "../../c/setup.h"
#include <stdlib.h>
#include <sys/mman.h>

enum { TRANSFER = 1 << 16 };

/* Returns how many of so many transfers were right, or -1 if the device cannot be set up. The device stays open. */
static int right_transfers(const char *device, int count)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC,
					 .cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct ibv_context *context = device_open(device);
	struct ibv_pd *pd = context ? ibv_alloc_pd(context) : NULL;
	union ibv_gid gid;
	struct ibv_qp *qp;
	int index, right = 0;

	if (!pd)
		return -1;
	index = best_gid(context, 1);
	init.send_cq = init.recv_cq = ibv_create_cq(context, 1, NULL, NULL, 0);
	qp = ibv_create_qp(pd, &init);
	if (!qp || ibv_query_gid(context, 1, index, &gid) || rc_connect(qp, rc_attr(qp->qp_num, &gid, index)))
		return -1;
	for (int i = 0; i < count; i++) {
		int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | (i % 2 ? IBV_ACCESS_ON_DEMAND : 0);
		unsigned char *memory = mmap(NULL, 2 * TRANSFER, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		struct ibv_mr *mr = ibv_reg_mr(pd, memory, 2 * TRANSFER, access);
		struct ibv_sge sge = { (uintptr_t)memory, TRANSFER, mr ? mr->lkey : 0 };
		struct ibv_send_wr *bad, wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
						.send_flags = IBV_SEND_SIGNALED,
						.wr.rdma = { (uintptr_t)memory + TRANSFER, mr ? mr->rkey : 0 } };
		struct ibv_wc wc = { .status = IBV_WC_GENERAL_ERR };

		if (!mr)
			break;
		memset(memory, i + 1, TRANSFER);
		if (!ibv_post_send(qp, &wr, &bad))
			while (!ibv_poll_cq(init.send_cq, 1, &wc))
				;
		right += wc.status == IBV_WC_SUCCESS && !memcmp(memory, memory + TRANSFER, TRANSFER);
		ibv_dereg_mr(mr);
		munmap(memory, 2 * TRANSFER);
	}
	return right;
}

#endif
