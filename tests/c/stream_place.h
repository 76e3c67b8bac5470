/* Where a side of a stream runs: the CPUs of all threads of this process, because the adapter may have threads of its own,
 * and the NUMA node of new memory. */
#ifndef STREAM_PLACE_H
#define STREAM_PLACE_H

#include "stream_job.h"
#include <ctype.h>
#include <dirent.h>
#include <sched.h>
#include <sys/syscall.h>

#define MAX_NODES 1024
#define NODE_WORDS (MAX_NODES / (8 * sizeof(unsigned long)))
/* <numaif.h> belongs to libnuma, which is not needed for two system calls. */
#define POLICY_DEFAULT 0
#define POLICY_BIND 2

/* What was there before the job. */
static struct before {
	struct { pid_t thread; cpu_set_t cpus; } *threads;
	size_t count;
	/* Of the main thread, for threads that were made since. */
	cpu_set_t cpus;
	int policy, bound;
	unsigned long nodes[NODE_WORDS];
} before;

/* Reads a list as "0-3,8". Returns 0 if it is none. */
static inline int cpu_list(const char *text, cpu_set_t *cpus)
{
	CPU_ZERO(cpus);
	do {
		char *rest;
		unsigned long first, last;

		if (!isdigit((unsigned char)*text))
			return 0;
		first = last = strtoul(text, &rest, 10);
		if (*rest == '-' && isdigit((unsigned char)rest[1]))
			last = strtoul(rest + 1, &rest, 10);
		if (last < first || last >= CPU_SETSIZE)
			return 0;
		for (unsigned long cpu = first; cpu <= last; cpu++)
			CPU_SET(cpu, cpus);
		text = rest;
	} while (*text++ == ',');
	return !text[-1] || text[-1] == '\n';
}

/* The CPUs of the job's list, else of its NUMA node. `*any` is 0 if there are none: the node has only memory. */
static inline const char *place_cpus(cpu_set_t *cpus, int *any)
{
	const struct place *place = my_place();
	char path[80], list[4096] = "";
	FILE *file;

	if (place->node >= 0) {
		snprintf(path, sizeof(path), "/sys/devices/system/node/node%d/cpulist", place->node);
		file = place->node < MAX_NODES ? fopen(path, "r") : NULL;
		if (!file)
			return wrong("--%s-node: there is no NUMA node %d here (%s)", client ? "sender" : "receiver", place->node,
				     "/sys/devices/system/node");
		if (!fgets(list, sizeof(list), file))
			list[0] = 0;
		fclose(file);
	}
	*any = place->cpus[0] || isdigit((unsigned char)list[0]);
	if (*any && !cpu_list(place->cpus[0] ? place->cpus : list, cpus))
		return wrong("--%s-cpus: `%s` is not a list of CPUs: give 0-3,8", client ? "sender" : "receiver", place->cpus);
	if (*any && !place->cpus[0]) {
		/* A node may have CPUs that this process may not use. */
		CPU_AND(cpus, cpus, &before.cpus);
		if (!CPU_COUNT(cpus))
			return wrong("--%s-node: this process may use no CPU of NUMA node %d", client ? "sender" : "receiver",
				     place->node);
	}
	return NULL;
}

/* Sets the CPUs of each thread, and notes what they were. */
static inline const char *place_threads(const cpu_set_t *cpus)
{
	DIR *folder = opendir("/proc/self/task");
	const char *why = folder ? NULL : wrong("/proc/self/task: %s", strerror(errno));
	struct dirent *entry;

	while (folder && !why && (entry = readdir(folder))) {
		pid_t thread = atoi(entry->d_name);
		cpu_set_t old, now_set;
		void *more;

		/* A thread may end meanwhile. */
		if (thread <= 0 || sched_getaffinity(thread, sizeof(old), &old))
			continue;
		more = realloc(before.threads, (before.count + 1) * sizeof(*before.threads));
		if (!more) {
			why = "no memory";
			break;
		}
		before.threads = more;
		before.threads[before.count].thread = thread;
		before.threads[before.count++].cpus = old;
		if (sched_setaffinity(thread, sizeof(*cpus), cpus)) {
			if (errno != ESRCH)
				why = wrong("--%s-cpus: these CPUs are not available here: %s", client ? "sender" : "receiver",
					    strerror(errno));
		} else if (!sched_getaffinity(thread, sizeof(now_set), &now_set) && !CPU_EQUAL(&now_set, cpus)) {
			/* The kernel ignores CPUs that it has not, as long as it has one of them. */
			why = wrong("--%s-cpus: %d of these %d CPUs are available here", client ? "sender" : "receiver",
				    CPU_COUNT(&now_set), CPU_COUNT(cpus));
		}
	}
	if (folder)
		closedir(folder);
	return why;
}

static inline const char *place_memory(int node)
{
	unsigned long nodes[NODE_WORDS] = { 0 };

	if (syscall(SYS_get_mempolicy, &before.policy, before.nodes, MAX_NODES, NULL, 0))
		before.policy = POLICY_DEFAULT;
	nodes[node / (8 * sizeof(long))] = 1ul << node % (8 * sizeof(long));
	if (syscall(SYS_set_mempolicy, POLICY_BIND, nodes, MAX_NODES))
		return wrong("--%s-node: memory of NUMA node %d cannot be chosen (set_mempolicy): %s",
			     client ? "sender" : "receiver", node, strerror(errno));
	before.bound = 1;
	return NULL;
}

/* Goes where the job wants this side. place_leave() is needed even after an error. */
static inline const char *place_enter(void)
{
	cpu_set_t cpus;
	int any = 0;
	const char *why;

	before.count = 0;
	sched_getaffinity(0, sizeof(before.cpus), &before.cpus);
	why = place_cpus(&cpus, &any);
	if (!why && any)
		why = place_threads(&cpus);
	if (!why && my_place()->node >= 0)
		why = place_memory(my_place()->node);
	return why;
}

/* Returns to where the process was before the job. */
static inline void place_leave(void)
{
	DIR *folder = before.count ? opendir("/proc/self/task") : NULL;
	struct dirent *entry;

	while (folder && (entry = readdir(folder))) {
		pid_t thread = atoi(entry->d_name);
		const cpu_set_t *cpus = &before.cpus;

		for (size_t i = 0; i < before.count; i++)
			if (before.threads[i].thread == thread)
				cpus = &before.threads[i].cpus;
		if (thread > 0)
			sched_setaffinity(thread, sizeof(*cpus), cpus);
	}
	if (folder)
		closedir(folder);
	before.count = 0;
	if (before.bound)
		syscall(SYS_set_mempolicy, before.policy, before.policy == POLICY_DEFAULT ? NULL : before.nodes, MAX_NODES);
	before.bound = 0;
}

#endif
