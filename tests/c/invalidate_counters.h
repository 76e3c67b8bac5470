/* The adapter's count of invalidations, from the file with the vendor's name in the process's run directory. */
#ifndef INVALIDATE_COUNTERS_H
#define INVALIDATE_COUNTERS_H

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The files lag behind the counters by up to a tenth of a second. Publication starts up to two seconds late. */
#define SETTLE_US 150000
#define LOOK_US 10000
#define LOOKS 500

static inline long counter_now(const char *name)
{
	const char *run = getenv("WEIR_RUN_DIR");
	char folder[512], path[1024];
	struct dirent *entry;
	long sum = -1, value;
	DIR *dir;

	if (!run)
		return -1;
	snprintf(folder, sizeof(folder), "%s/%d/class/infiniband_verbs", run, (int)getpid());
	dir = opendir(folder);
	while (dir && (entry = readdir(dir))) {
		FILE *file;

		snprintf(path, sizeof(path), "%s/%s/%s", folder, entry->d_name, name);
		if (entry->d_name[0] == '.' || !(file = fopen(path, "r")))
			continue;
		if (fscanf(file, "%ld", &value) == 1)
			sum = (sum < 0 ? 0 : sum) + value;
		fclose(file);
	}
	if (dir)
		closedir(dir);
	return sum;
}

/* Waits until a counter of this process, summed over its devices, has reached `wanted`, or for five seconds, and returns
 * what it is a little later: it must stay there. -1 as `wanted` stands for any value. -1 without WEIR_RUN_DIR. */
static inline long counter(const char *name, long wanted)
{
	long value;

	for (int i = 0; wanted >= 0 && (value = counter_now(name)) >= 0 && i < LOOKS && value < wanted; i++)
		usleep(LOOK_US);
	usleep(SETTLE_US);
	return counter_now(name);
}

#endif
