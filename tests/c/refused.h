/* How programs print what is refused, and the objects that such a program has. */
#ifndef REFUSED_H
#define REFUSED_H
#include "setup.h"
#include <errno.h>
#include <stdio.h>

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;

static inline void refused(const char *name, int error)
{
	printf("%s: %d\n", name, error);
}

/* A call that returns an object, or NULL and errno. */
#define NO_OBJECT(name, call) (errno = 0, refused(name, (call) ? 0 : errno))

/* Opens the device; 0, or 1. */
static inline int refused_begin(const char *device)
{
	context = device_open(device);
	pd = context ? ibv_alloc_pd(context) : NULL;
	cq = pd ? ibv_create_cq(context, 16, NULL, NULL, 0) : NULL;
	return !cq;
}

/* Closes the device: 0, or the error of the first object that is in use. */
static inline int refused_end(void)
{
	return ibv_destroy_cq(cq) || ibv_dealloc_pd(pd) || ibv_close_device(context);
}

/* The GID that programs connect by; returns its index. */
static inline int own_gid(union ibv_gid *gid)
{
	int index = best_gid(context, 1);

	ibv_query_gid(context, 1, index, gid);
	return index;
}

static inline struct ibv_qp *qp_of(enum ibv_qp_type type, struct ibv_srq *srq, uint32_t sends)
{
	struct ibv_qp_init_attr init = { .qp_type = type, .send_cq = cq, .recv_cq = cq, .srq = srq,
					 .cap = { .max_send_wr = sends, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 } };

	return ibv_create_qp(pd, &init);
}

#endif
