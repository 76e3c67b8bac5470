/* FLUSH, which headers before rdma-core 45 do not have. */
#ifndef FLUSHING_H
#define FLUSHING_H
#include <infiniband/verbs.h>

/* Of `send_ops_flags`. */
enum { OFFERS_FLUSH = 1 << 11 };

struct flushing_qp {
	struct ibv_qp_ex ex;
	void (*wr_flush)(struct ibv_qp_ex *, uint32_t rkey, uint64_t addr, size_t length, uint8_t type, uint8_t level);
};

#endif
