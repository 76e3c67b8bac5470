/* Special memory: reregistered regions, null regions, device memory, windows. */
#ifndef MEMORY_H
#define MEMORY_H

#include "faults.h"

/* Whether both sides support it; adapters may lack it. */
static inline int both_have(int mine)
{
	int theirs;

	exchange(&mine, &theirs, sizeof(mine));
	return mine && theirs;
}

/* Posts the client's only work request, which must succeed. */
static inline void succeeds(struct conn *c, struct ibv_send_wr *wr, enum ibv_wc_opcode opcode, const char *what)
{
	wr->wr_id = 7;
	wr->send_flags |= IBV_SEND_SIGNALED;
	post_send(c, wr, what);
	expect(c->send_cq, 7, IBV_WC_SUCCESS, opcode, what);
}

static inline struct ibv_send_wr write_wr(struct ibv_sge *data, uint64_t to, uint32_t rkey)
{
	struct ibv_send_wr wr = { .sg_list = data, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE };

	wr.wr.rdma.remote_addr = to;
	wr.wr.rdma.rkey = rkey;
	return wr;
}

/* Reads from a null region return zeros, and writes to it are discarded. */
static inline void null_regions(struct conn *c)
{
	struct ibv_mr *null = ibv_alloc_null_mr(rig.pd);
	struct ibv_sge sges[2];
	struct ibv_send_wr wr = { .sg_list = sges, .num_sge = 1, .opcode = IBV_WR_SEND };

	if (both_have(null != NULL)) {
		background(&rig.target, 4096, 31);
		pattern(rig.source.at, 300, 32);
		sges[0] = client ? (struct ibv_sge){ 12345, 300, null->lkey } : sge(&rig.target, 1000, 300);
		if (!client) {
			memset(rig.target.expected + 1000, 0, 300);
			post_recv(c, 1, sges, 1, "a null region");
		}
		barrier();
		if (client)
			succeeds(c, &wr, IBV_WC_SEND, "a SEND from a null region");
		else
			expect(c->recv_cq, 1, IBV_WC_SUCCESS, IBV_WC_RECV, "a receive of zeros");
		compare(&rig.target, 4096, "zeros of a null region");

		sges[0] = client ? sge(&rig.source, 0, 300) : (struct ibv_sge){ 1ull << 40, 100, null->lkey };
		sges[1] = sge(&rig.target, 2000, 200);
		if (!client) {
			pattern(rig.target.expected + 1900, 300, 32);
			memcpy(rig.target.expected + 1900, rig.target.at + 1900, 100);
			post_recv(c, 2, sges, 2, "a null region");
		}
		barrier();
		if (client)
			succeeds(c, &wr, IBV_WC_SEND, "a SEND to a null region");
		else
			expect(c->recv_cq, 2, IBV_WC_SUCCESS, IBV_WC_RECV, "a receive with a null region");
		compare(&rig.target, 4096, "a receive with a null region as its first SGE");
		barrier();
		if (client) {
			struct ibv_sge into = { 0, 4096, null->lkey };
			struct ibv_send_wr read = write_wr(&into, rig.far.source, rig.far.source_rkey);

			read.opcode = IBV_WR_RDMA_READ;
			succeeds(c, &read, IBV_WC_RDMA_READ, "a READ into a null region");
		}
	}
	check(!null || !ibv_dereg_mr(null), "ibv_dereg_mr of a null region");
}

#define DM_SIZE 512

/* Device memory at both ends of a WRITE, as target of an atomic, and accessed by ibv_memcpy. */
static inline void device_memory(struct conn *c)
{
	int all = IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
		  IBV_ACCESS_REMOTE_ATOMIC;
	struct ibv_alloc_dm_attr attr = { .length = DM_SIZE, .log_align_req = 3 };
	struct ibv_device_attr_ex ex = {};
	uint8_t bytes[DM_SIZE], expected[DM_SIZE];
	uint32_t mine = 0, theirs;
	struct ibv_mr *mr = NULL;
	struct ibv_dm *dm = NULL;

	if (!ibv_query_device_ex(rig.context, NULL, &ex) && ex.max_dm_size >= DM_SIZE)
		dm = ibv_alloc_dm(rig.context, &attr);
	if (!both_have(dm != NULL))
		goto out;
	check(!ibv_reg_dm_mr(rig.pd, dm, 0, DM_SIZE, all & ~IBV_ACCESS_ZERO_BASED), "a region that is not zero-based");
	check(!ibv_reg_dm_mr(rig.pd, dm, 8, DM_SIZE, all), "a region beyond the device memory");
	mr = ibv_reg_dm_mr(rig.pd, dm, 0, DM_SIZE, all);
	if (!check(mr != NULL, "ibv_reg_dm_mr"))
		die("no region of device memory");
	mine = mr->rkey;
	exchange(&mine, &theirs, sizeof(mine));
	pattern(expected, DM_SIZE, 41 + !client);
	check(!ibv_memcpy_to_dm(dm, 0, expected, DM_SIZE), "ibv_memcpy_to_dm");
	check(ibv_memcpy_to_dm(dm, 4, expected, DM_SIZE), "ibv_memcpy_to_dm beyond the end");
	barrier();
	if (client) {
		struct ibv_sge from = { 64, 128, mr->lkey }, result = sge(&rig.source, 0, 8);
		struct ibv_send_wr wr = write_wr(&from, 256, theirs);
		struct ibv_send_wr add = { .sg_list = &result, .num_sge = 1, .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD };
		uint64_t before;

		succeeds(c, &wr, IBV_WC_RDMA_WRITE, "a WRITE between device memories");
		add.wr.atomic.remote_addr = 8;
		add.wr.atomic.rkey = theirs;
		add.wr.atomic.compare_add = 1000;
		if (rig.attr.atomic_cap != IBV_ATOMIC_NONE) {
			succeeds(c, &add, IBV_WC_FETCH_ADD, "an atomic on device memory");
			pattern(expected, DM_SIZE, 42);
			memcpy(&before, expected + 8, 8);
			check(!memcmp(&before, rig.source.at, 8), "the value before the atomic");
			pattern(expected, DM_SIZE, 41);
		}
	}
	barrier();
	if (!client) {
		uint64_t word;

		pattern(bytes, DM_SIZE, 41);
		memcpy(expected + 256, bytes + 64, 128);
		memcpy(&word, expected + 8, 8);
		word += rig.attr.atomic_cap != IBV_ATOMIC_NONE ? 1000 : 0;
		memcpy(expected + 8, &word, 8);
	}
	check(!ibv_memcpy_from_dm(bytes, dm, 0, DM_SIZE) && !memcmp(bytes, expected, DM_SIZE), "device memory");
	check(ibv_free_dm(dm) != 0, "device memory with a region cannot be freed");
out:
	check(!mr || !ibv_dereg_mr(mr), "ibv_dereg_mr of device memory");
	check(!dm || !ibv_free_dm(dm), "ibv_free_dm");
}

/* One WRITE of the client on its own connection, to check what the server's region allows now. */
static inline void probe(uint64_t to, uint32_t rkey, enum ibv_wc_status status, const char *what)
{
	struct { uint64_t to, rkey; } mine = { to, rkey }, theirs;
	struct conn c;

	conn_open(&c, &default_options);
	exchange(&mine, &theirs, sizeof(mine));
	if (client) {
		struct ibv_sge data = sge(&rig.source, 0, 100);
		struct ibv_send_wr wr = write_wr(&data, theirs.to, theirs.rkey);

		pattern(rig.source.at, 100, 51);
		if (status == IBV_WC_SUCCESS)
			succeeds(&c, &wr, IBV_WC_RDMA_WRITE, what);
		else
			fails_with(&c, &wr, status, what);
	} else if (status != IBV_WC_SUCCESS) {
		expect_async(&c, IBV_EVENT_QP_ACCESS_ERR, what);
	}
	barrier();
	if (!client) {
		if (status == IBV_WC_SUCCESS)
			pattern(rig.target.expected + (to - (uintptr_t)rig.target.at), 100, 51);
		compare(&rig.target, 8192, what);
	}
	conn_close(&c);
}

/* Changes one property of a region after another. */
static inline void changed_regions(struct conn *unused)
{
	const int writable = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	struct ibv_pd *other = ibv_alloc_pd(rig.context);
	uint8_t *at = rig.target.at;
	struct ibv_mr *mr = ibv_reg_mr(rig.pd, at, 4096, writable);
	int error = mr ? ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, writable) : 1;

	(void)unused;
	check(mr && other, "a region and another domain");
	if (both_have(!error)) {
		check(ibv_rereg_mr(mr, 8, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT, "an unknown flag");
		check(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, at, 0, 0) == IBV_REREG_MR_ERR_INPUT,
		      "no bytes");
		check(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, other, NULL, 0, writable) == IBV_REREG_MR_ERR_INPUT,
		      "access without IBV_REREG_MR_CHANGE_ACCESS");
		background(&rig.target, 8192, 52);
		probe((uintptr_t)at + 1000, mr->rkey, IBV_WC_SUCCESS, "before a change");
		check(!ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, at + 4096, 4096, 0) &&
			      mr->addr == at + 4096 && mr->length == 4096,
		      "other memory");
		probe((uintptr_t)at + 5000, mr->rkey, IBV_WC_SUCCESS, "the new memory");
		probe((uintptr_t)at + 1000, mr->rkey, IBV_WC_REM_ACCESS_ERR, "the old memory");
		check(!ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE), "less access");
		probe((uintptr_t)at + 5000, mr->rkey, IBV_WC_REM_ACCESS_ERR, "access that was removed");
		check(!ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS, other, NULL, 0, writable) &&
			      mr->pd == other,
		      "another domain");
		probe((uintptr_t)at + 5000, mr->rkey, IBV_WC_REM_ACCESS_ERR, "another domain's region");
		check(ibv_dealloc_pd(other) != 0, "a PD with a moved region cannot be freed");
		check(!ibv_rereg_mr(mr, 7, rig.pd, at, 8192, writable), "everything at once");
		probe((uintptr_t)at + 8000, mr->rkey, IBV_WC_SUCCESS, "everything changed");
	}
	check(!mr || !ibv_dereg_mr(mr), "ibv_dereg_mr of a changed region");
	check(!other || !ibv_dealloc_pd(other), "ibv_dealloc_pd");
}

#endif
