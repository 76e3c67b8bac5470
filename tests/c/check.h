/* Counted checks: the text of a failed one is printed with errno. */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static int passed, failed;

__attribute__((format(printf, 2, 3))) static int check(int right, const char *format, ...)
{
	va_list args;

	right ? passed++ : failed++;
	if (right)
		return 1;
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	printf(" (errno %d, %s)\n", errno, strerror(errno));
	return 0;
}

#endif
