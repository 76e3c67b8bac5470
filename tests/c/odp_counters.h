/* The adapter's count of page faults, from the file with the vendor's name. */
#ifndef ODP_COUNTERS_H
#define ODP_COUNTERS_H

#include "odp_buffer.h"
#include <dirent.h>

/* Weir's files lag behind its counters by up to a tenth of a second. */
#define SETTLE_US 150000

static inline long number_in(const char *folder, const char *device, const char *name)
{
	char path[1024], owner[128] = "";
	long value = -1;
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s/ibdev", folder, device);
	if ((file = fopen(path, "r"))) {
		if (fscanf(file, "%127s", owner) != 1)
			owner[0] = 0;
		fclose(file);
	}
	if (strcmp(owner, ibv_get_device_name(rig.context->device)))
		return -1;
	snprintf(path, sizeof(path), "%s/%s/%s", folder, device, name);
	if ((file = fopen(path, "r"))) {
		if (fscanf(file, "%ld", &value) != 1)
			value = -1;
		fclose(file);
	}
	return value;
}

/* Page faults of the device so far: of this process if WEIR_RUN_DIR is set, otherwise of the host; -1 if unknown. */
static inline long page_faults(void)
{
	const char *run = getenv("WEIR_RUN_DIR");
	char folder[512] = "/sys/class/infiniband_verbs";
	struct dirent *entry;
	long found = -1;
	DIR *dir;

	if (run) {
		snprintf(folder, sizeof(folder), "%s/%d/class/infiniband_verbs", run, (int)getpid());
		usleep(SETTLE_US);
	}
	dir = opendir(folder);
	while (dir && found < 0 && (entry = readdir(dir)))
		found = number_in(folder, entry->d_name, "num_page_faults");
	if (dir)
		closedir(dir);
	return found;
}

#endif
