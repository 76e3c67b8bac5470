/* What computations of buffers larger than memory have in common. It is also compiled with MPI. */
#ifndef ODP_WORK_H
#define ODP_WORK_H

#include <stdint.h>
#include <stdio.h>
#include <sys/resource.h>

/* Work on some words that stay within the cache: `rounds` rounds of a hash over them. */
static inline void compute(uint64_t *words, int count, int rounds)
{
	uint64_t x = words[0];

	for (int r = 0; r < rounds; r++)
		for (int i = 0; i < count; i++)
			words[i] = x = (x ^ words[i]) * 0x9e3779b97f4a7c15 + r;
}

static inline double cpu_of(const struct rusage *used)
{
	return used->ru_utime.tv_sec + used->ru_stime.tv_sec + (used->ru_utime.tv_usec + used->ru_stime.tv_usec) * 1e-6;
}

/* Seconds for which this thread was runnable but had no core. */
static inline double waited_for_core(void)
{
	FILE *file = fopen("/proc/thread-self/schedstat", "r");
	double ran, waited = 0;

	if (file && fscanf(file, "%lf %lf", &ran, &waited) != 2)
		waited = 0;
	if (file)
		fclose(file);
	return waited * 1e-9;
}

/* The line that the bench reads. */
static inline void print_times(const char *memory, double exchange, double compute, double others,
			       const struct rusage *before, const struct rusage *after, int wrong)
{
	printf("{\"what\":\"out of core\",\"memory\":\"%s\",\"exchange\":%.3f,\"compute\":%.3f,\"others\":%.3f,\"cpu\":%.3f,"
	       "\"from_swap\":%ld,\"wrong\":%s}\n",
	       memory, exchange, compute, others, cpu_of(after) - cpu_of(before), after->ru_majflt - before->ru_majflt,
	       wrong ? "true" : "false");
}

#endif
