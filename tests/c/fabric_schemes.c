/*
 * Two endpoints of one process, each with a registration scheme of its own (fi_setopt), exchange a large message. Prints
 * "ok" if all is as it should be; the summaries of the endpoints (WEIR_ODP_SUMMARY) name their schemes.
 */
#include <errno.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* As docs/messaging.md has it. */
#define WEIR_ODP_OPT_SCHEME ((int)(FI_PROV_SPECIFIC | 1))
#define BYTES (1 << 20)

static void check(int ok, const char *what)
{
	if (!ok) {
		fprintf(stderr, "%s\n", what);
		exit(1);
	}
}

static struct fid_ep *endpoint(struct fid_domain *domain, struct fi_info *info, struct fid_cq **cq, struct fid_av **av)
{
	struct fi_cq_attr cq_attr = { .format = FI_CQ_FORMAT_CONTEXT };
	struct fi_av_attr av_attr = { .type = FI_AV_TABLE };
	struct fid_ep *ep;

	check(!fi_endpoint(domain, info, &ep, NULL), "fi_endpoint");
	check(!fi_cq_open(domain, &cq_attr, cq, NULL) && !fi_av_open(domain, &av_attr, av, NULL), "a queue and a vector");
	check(!fi_ep_bind(ep, &(*cq)->fid, FI_SEND | FI_RECV) && !fi_ep_bind(ep, &(*av)->fid, 0), "fi_ep_bind");
	return ep;
}

static void choose(struct fid_ep *ep, const char *scheme)
{
	char now[32];
	size_t len = sizeof now;

	check(!fi_getopt(&ep->fid, FI_OPT_ENDPOINT, WEIR_ODP_OPT_SCHEME, now, &len), "fi_getopt");
	check(!strcmp(now, "odp-optimal") && len == strlen(now) + 1, "the environment's scheme");
	check(fi_setopt(&ep->fid, FI_OPT_ENDPOINT, WEIR_ODP_OPT_SCHEME, "pinned", 7) == -FI_EINVAL, "an unknown scheme");
	check(!fi_setopt(&ep->fid, FI_OPT_ENDPOINT, WEIR_ODP_OPT_SCHEME, scheme, strlen(scheme)), "fi_setopt");
	len = sizeof now;
	check(!fi_getopt(&ep->fid, FI_OPT_ENDPOINT, WEIR_ODP_OPT_SCHEME, now, &len) && !strcmp(now, scheme), "the choice");
	check(!fi_enable(ep), "fi_enable");
	check(fi_setopt(&ep->fid, FI_OPT_ENDPOINT, WEIR_ODP_OPT_SCHEME, scheme, strlen(scheme)) == -FI_EOPBADSTATE,
	      "a choice that comes too late");
}

int main(void)
{
	struct fi_info *hints = fi_allocinfo(), *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_ep *ep[2];
	struct fid_cq *cq[2];
	struct fid_av *av[2];
	struct fi_context contexts[2];
	fi_addr_t to;
	char name[64];

	hints->fabric_attr->prov_name = strdup("weir-odp");
	hints->caps = FI_MSG;
	hints->mode = FI_CONTEXT;
	hints->ep_attr->type = FI_EP_RDM;
	check(!fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info), "fi_getinfo");
	check(!fi_fabric(info->fabric_attr, &fabric, NULL) && !fi_domain(fabric, info, &domain, NULL), "fi_domain");
	for (int i = 0; i < 2; i++)
		ep[i] = endpoint(domain, info, &cq[i], &av[i]);
	choose(ep[0], "pin-down");
	choose(ep[1], "odp-native");
	size_t len = sizeof name;
	check(!fi_getname(&ep[1]->fid, name, &len) && fi_av_insert(av[0], name, 1, &to, 0, NULL) == 1, "the address");

	char *out = malloc(BYTES), *in = calloc(1, BYTES);
	memset(out, 'x', BYTES);
	check(!fi_recv(ep[1], in, BYTES, NULL, FI_ADDR_UNSPEC, &contexts[1]), "fi_recv");
	while (fi_send(ep[0], out, BYTES, NULL, to, &contexts[0]) == -FI_EAGAIN)
		fi_cq_read(cq[1], NULL, 0);
	int open = 2;
	for (long tries = 0; open > 0 && tries < 1000000000; tries++)
		for (int i = 0; i < 2; i++) {
			struct fi_cq_entry entry;
			ssize_t count = fi_cq_read(cq[i], &entry, 1);
			check(count == 1 || count == -FI_EAGAIN, "fi_cq_read");
			open -= count == 1;
		}
	check(open == 0 && !memcmp(in, out, BYTES), "the message");
	for (int i = 0; i < 2; i++)
		check(!fi_close(&ep[i]->fid) && !fi_close(&cq[i]->fid) && !fi_close(&av[i]->fid), "fi_close");
	check(!fi_close(&domain->fid) && !fi_close(&fabric->fid), "fi_close of the domain");
	fi_freeinfo(info);
	fi_freeinfo(hints);
	puts("ok");
	return 0;
}
