/*
 * Symbols in the private version nodes of rdma-core's releases, which a version script alone cannot express.
 * versions.c and the file that link.sh writes use these.
 */
#include <errno.h>
#include <stddef.h>

struct ibv_context;
int weir_query_gid_type(struct ibv_context *context, unsigned char port, unsigned int index, int *type);
const char *weir_wr_opcode_str(int opcode);

#define IN_NODE(node)                                                                                   \
	__asm__(".symver gid_type_" #node ", ibv_query_gid_type@IBVERBS_PRIVATE_" #node);               \
	int gid_type_##node(struct ibv_context *context, unsigned char port, unsigned int index, int *type) \
	{                                                                                               \
		return weir_query_gid_type(context, port, index, type);                                 \
	}                                                                                               \
	__asm__(".symver opcode_str_" #node ", ibv_wr_opcode_str@IBVERBS_PRIVATE_" #node);              \
	const char *opcode_str_##node(int opcode)                                                       \
	{                                                                                               \
		return weir_wr_opcode_str(opcode);                                                      \
	}

/* A private symbol that calls one of the functions below. */
#define PRIVATE(kind, node, name)                                                                       \
	__asm__(".symver private_" #node "_" #name ", " #name "@IBVERBS_PRIVATE_" #node);               \
	extern __typeof__(private_##kind) private_##node##_##name __attribute__((alias("private_" #kind)));

/* A private variable: only zeros are known of it. */
#define PRIVATE_DATA(node, name)                                                                        \
	__asm__(".symver private_" #node "_" #name ", " #name "@IBVERBS_PRIVATE_" #node);               \
	size_t private_##node##_##name;

__attribute__((unused)) static int private_errno(void)
{
	return errno = EOPNOTSUPP;
}

__attribute__((unused)) static long private_minus(void)
{
	errno = EOPNOTSUPP;
	return -1;
}

__attribute__((unused)) static void *private_null(void)
{
	errno = EOPNOTSUPP;
	return NULL;
}

__attribute__((unused)) static size_t private_none(void)
{
	return 0;
}
