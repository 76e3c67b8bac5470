/* The client's output: text, or one JSON object. Times in JSON are in microseconds. */
#ifndef MICRO_REPORT_H
#define MICRO_REPORT_H

#include "micro_run.h"

/* Up to this number operations are printed one by one. */
#define FEW 16

static inline int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static inline const char *odp_name(void)
{
	static const char *const name[] = { "none", "client", "server", "both" };

	return name[job.odp & 3];
}

static inline void times(const char *name, const double *values, uint32_t count)
{
	printf("\"%s\":[", name);
	for (uint32_t i = 0; i < count; i++)
		if (values[i] >= 0)
			printf("%s%.3f", i ? "," : "", values[i] * 1e6);
		else
			printf("%snull", i ? "," : "");
	printf("],");
}

static inline void report_json(void)
{
	printf("{\"device\":\"%s\",\"port\":%d,\"gid\":%d,\"mtu\":%u,\"cq\":%d,\"wrs\":%u,",
	       ibv_get_device_name(rig.context->device), opt.ib_port, rig.gid_index, 128u << rig.port.active_mtu, micro.cqe,
	       micro.depth);
	printf("\"time\":%.3f,\"start\":%" PRIu64 ",", run.end * 1e6, run.wall);
	times("posted", run.posted, run.begun);
	times("completions", run.completed, job.num_ops);
	if (run.status)
		printf("\"status\":\"%s\",", run.status);
	else
		printf("\"status\":null,");
	printf("\"dummies\":%u,\"again\":%u,\"cpu\":%.1f,\"server_cpu\":%.1f,\"checked\":%" PRIu64 ",\"wrong\":%" PRIu64 ",",
	       run.dummies, run.repeats, run.cpu * 1e6, run.far_cpu * 1e6, run.checked + run.far_checked,
	       run.wrong + run.far_wrong);
	if (run.sleeps) {
		qsort(run.oversleep, run.sleeps, sizeof(double), ascending);
		printf("\"wakeup\":{\"median\":%.3f,\"most\":%.3f,\"sleeps\":%u},", run.oversleep[run.sleeps / 2] * 1e6,
		       run.oversleep[run.sleeps - 1] * 1e6, run.sleeps);
	} else {
		printf("\"wakeup\":null,");
	}
	printf("\"address\":%" PRIu64 ",\"qps\":[", micro.far_at);
	for (uint32_t i = 0; i < micro.all_qps; i++)
		printf("%s[%u,%u]", i ? "," : "", micro.qps[i]->qp_num, micro.far_qps[i]);
	printf("]}\n");
}

static inline void report_operations(void)
{
	double *sorted = calloc(job.num_ops, sizeof(double));
	uint32_t n = 0;

	for (uint32_t i = 0; sorted && i < job.num_ops; i++) {
		double at = run.completed[i];

		if (at >= 0)
			sorted[n++] = at;
		if (job.num_ops > FEW)
			continue;
		printf("%-14s #%-3u ", kind_name[kind_of(i)], i);
		if (i < run.begun)
			printf("posted at %.3f ms, ", run.posted[i] * 1e3);
		if (at >= 0)
			printf("completed at %.3f ms\n", at * 1e3);
		else
			printf("%s\n", at == FAILED ? "failed" : "not completed");
	}
	printf("%-14s %u of %u completed", "operations", n, job.num_ops);
	if (sorted && n) {
		qsort(sorted, n, sizeof(double), ascending);
		printf(": the first at %.3f ms, half of them at %.3f ms, the last at %.3f ms", sorted[0] * 1e3,
		       sorted[(n - 1) / 2] * 1e3, sorted[n - 1] * 1e3);
	}
	printf("\n");
	free(sorted);
}

static inline void report_text(void)
{
	uint32_t mtu = 128u << rig.port.active_mtu;

	printf("%u %s", job.num_ops, kind_name[job.operation]);
	if (job.second != job.operation && job.num_ops > 1)
		printf(" and then %s", kind_name[job.second]);
	printf(" of %u bytes over %u QP%s, %.6g us %s; on demand: %s%s; RNR timer %u (%.6g ms), C_ACK %u, retry count %u, "
	       "max_rd_atomic %u\n",
	       job.size, job.num_qps, job.num_qps > 1 ? "s" : "", job.interval * 1e-3,
	       job.in_turn ? "after the completion of the one before" : "apart", odp_name(),
	       job.touched ? " (all but the first operation's pages touched)" : "", job.rnr_timer, rnr_ms(job.rnr_timer),
	       job.ack_timeout, job.retry_count, job.max_rd_atomic);
	printf("%s, port %d, GID %d, MTU %u%s, CQ %d, %u work requests per QP\n", ibv_get_device_name(rig.context->device),
	       opt.ib_port, rig.gid_index, mtu, mtu < job.mtu ? " (the ports have no more)" : "", micro.cqe, micro.depth);
	report_operations();
	printf("%-14s %.3f ms\n", "time", run.end * 1e3);
	if (job.wrong_peer && run.ended)
		printf("%-14s %.3f ms (the time divided by retry count + 1)\n", "ACK timeout",
		       run.end * 1e3 / (job.retry_count + 1));
	if (job.dummy_every || job.again_after)
		printf("%-14s %u dummies, %u issued again\n", "workaround", run.dummies, run.repeats);
	printf("%-14s client %.3f ms (it polls), server %.3f ms\n", "CPU", run.cpu * 1e3, run.far_cpu * 1e3);
	if (run.sleeps) {
		qsort(run.oversleep, run.sleeps, sizeof(double), ascending);
		printf("%-14s usleep is %.1f us late (median), at most %.1f us, of %u\n", "wake-up",
		       run.oversleep[run.sleeps / 2] * 1e6, run.oversleep[run.sleeps - 1] * 1e6, run.sleeps);
	}
	printf("%-14s %" PRIu64 " compared, %" PRIu64 " wrong\n", "bytes", run.checked + run.far_checked,
	       run.wrong + run.far_wrong);
	if (run.status)
		printf("%-14s %s\n", "status", run.status);
}

#endif
