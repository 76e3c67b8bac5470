/* Closes its device in an exit handler, as destructors of global objects do: the variables of the thread are destroyed
 * then. */
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>

static struct ibv_context *context;

static void close_device(void)
{
	if (ibv_close_device(context) == 0)
		puts("ok");
}

int main(void)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);

	atexit(close_device);
	context = devices && devices[0] ? ibv_open_device(devices[0]) : NULL;
	/* Something is logged by this thread before. */
	return !context || ibv_reg_mr(ibv_alloc_pd(context), NULL, 1, 1 << 30) != NULL;
}
