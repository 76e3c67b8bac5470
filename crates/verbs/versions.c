/*
 * Functions in five version nodes each, which a version script alone cannot express.
 * Clients linked against different releases of rdma-core look for ibv_query_gid_type and ibv_wr_opcode_str in different
 * private nodes.
 */
#include "private.h"

IN_NODE(34)
IN_NODE(57)
IN_NODE(59)
IN_NODE(64)
IN_NODE(65)

/* The same for pthread_sigmask: programs need the version that was in libpthread, or that of the C library. */
int weir_pthread_sigmask(int how, const void *set, void *old);

#define SIGMASK(name, version)                                                  \
	__asm__(".symver " #name ", pthread_sigmask@" version);                 \
	int name(int how, const void *set, void *old)                           \
	{                                                                       \
		return weir_pthread_sigmask(how, set, old);                     \
	}

SIGMASK(sigmask_of_libpthread, "GLIBC_2.2.5")
SIGMASK(sigmask_of_libc, "@GLIBC_2.32")
