/* The program takes away what the library stands on, while transfers run: the library itself, or the root folder.
 *
 *   leaves DEVICE PLUGIN   compiled with UNLINKED: loads PLUGIN, which is linked to libibverbs, and unloads it, some times
 *   leaves DEVICE FOLDER   makes an empty folder its root and then goes on
 *
 * Compiled with PLUGIN it is the plugin. Prints failures and a last line "N passed, M failed". */
#define _GNU_SOURCE
#ifndef PLUGIN
#include "check.h"
#endif
#include <dlfcn.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#ifndef UNLINKED
#include "setup.h"
#include <stdlib.h>
#include <time.h>

#define SIZE (1 << 20)
#define WRITES 64

struct rig {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	unsigned char *memory;
};

/* A QP that is connected to itself. */
static int set_up(struct rig *rig, const char *device)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC,
					 .cap = { .max_send_wr = WRITES, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 } };
	union ibv_gid gid;
	int index;

	memset(rig, 0, sizeof *rig);
	rig->context = device_open(device);
	if (!rig->context)
		return 0;
	index = best_gid(rig->context, 1);
	ibv_query_gid(rig->context, 1, index, &gid);
	rig->pd = ibv_alloc_pd(rig->context);
	rig->cq = ibv_create_cq(rig->context, WRITES, NULL, NULL, 0);
	rig->memory = calloc(2, SIZE);
	rig->mr = ibv_reg_mr(rig->pd, rig->memory, 2 * SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	init.send_cq = init.recv_cq = rig->cq;
	rig->qp = ibv_create_qp(rig->pd, &init);
	return rig->pd && rig->cq && rig->mr && rig->qp && !rc_connect(rig->qp, rc_attr(rig->qp->qp_num, &gid, index));
}

/* Posts WRITES WRITEs of a megabyte. */
static int begin(struct rig *rig)
{
	struct ibv_sge sge = { (uintptr_t)rig->memory, SIZE, rig->mr->lkey };
	struct ibv_send_wr *bad, wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
					.send_flags = IBV_SEND_SIGNALED,
					.wr.rdma = { (uintptr_t)rig->memory + SIZE, rig->mr->rkey } };

	memset(rig->memory, 0x5a, SIZE);
	for (int i = 0; i < WRITES; i++)
		if (ibv_post_send(rig->qp, &wr, &bad))
			return 0;
	return 1;
}

/* Whether all of them succeed, and the bytes are there. */
static int finish(struct rig *rig)
{
	time_t end = time(NULL) + 60;
	struct ibv_wc wc;

	for (int done = 0; done < WRITES;) {
		int got = ibv_poll_cq(rig->cq, 1, &wc);
		if (got < 0 || (got && wc.status) || time(NULL) > end)
			return 0;
		done += got;
	}
	return !memcmp(rig->memory, rig->memory + SIZE, SIZE);
}
#endif

#ifdef PLUGIN
/* Opens the device, and leaves a transfer that runs. */
const char *visit(const char *device);

const char *visit(const char *device)
{
	struct rig rig;

	if (!set_up(&rig, device))
		return "set-up";
	if (!begin(&rig) || !finish(&rig))
		return "a transfer";
	return begin(&rig) ? NULL : "post";
}
#else
#ifdef UNLINKED
static void unloads(const char *device, const char *file)
{
	for (int round = 0; round < 5; round++) {
		void *plugin = dlopen(file, RTLD_NOW | RTLD_LOCAL);
		const char *(*visit)(const char *);
		const char *failure;

		if (!check(plugin != NULL, "round %d: %s", round, plugin ? "" : dlerror()))
			return;
		visit = (const char *(*)(const char *))dlsym(plugin, "visit");
		failure = visit ? visit(device) : "no function";
		check(!failure, "round %d: %s", round, failure ? failure : "");
		check(!dlclose(plugin), "round %d: dlclose", round);
		usleep(20000);
	}
}
#else
static void chroots(const char *device, const char *folder)
{
	struct rig rig, later;

	/* In a user namespace of its own every user may do this. */
	if (geteuid())
		check(!unshare(CLONE_NEWUSER), "a user namespace");
	if (!check(set_up(&rig, device), "set-up") || !check(begin(&rig), "post"))
		return;
	check(!chroot(folder) && !chdir("/"), "chroot to %s", folder);
	check(access("/proc/self", F_OK) && access("/dev/null", F_OK), "files are still there");
	check(finish(&rig), "the transfer that ran");
	check(begin(&rig) && finish(&rig), "a later transfer");
	check(set_up(&later, device) && begin(&later) && finish(&later), "a device that is opened later");
	check(!ibv_destroy_qp(rig.qp) && !ibv_dereg_mr(rig.mr) && !ibv_destroy_cq(rig.cq) && !ibv_dealloc_pd(rig.pd) &&
		      !ibv_close_device(rig.context),
	      "the end");
}
#endif

int main(int argc, char **argv)
{
	if (argc != 3)
		return 2;
#ifdef UNLINKED
	unloads(argv[1], argv[2]);
#else
	chroots(argv[1], argv[2]);
#endif
	printf("%d passed, %d failed\n", passed, failed);
	return failed != 0;
}
#endif
