/* Checks that end the process when they fail. */
#ifndef FATAL_H
#define FATAL_H

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

/* Not exit(): a forked child must not run its parent's handlers, and other threads still use the objects. */
#define CHECK(condition)                                                                                  \
	do {                                                                                              \
		if (!(condition)) {                                                                       \
			fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno); \
			_exit(1);                                                                         \
		}                                                                                         \
	} while (0)

#endif
