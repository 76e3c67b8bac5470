/*
 * Functions of the exec family with a variable argument list: they collect it and call the functions of
 * src/hooks/ends.rs.
 */
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>

/* Counts the arguments up to the null pointer, and copies them into an array on this function's stack. */
#define COLLECT(arg, argv, last)                                 \
	size_t count = 1;                                        \
	va_list list;                                            \
	va_start(list, arg);                                     \
	while (va_arg(list, const char *))                       \
		count++;                                         \
	va_end(list);                                            \
	char *argv[count + 1];                                   \
	va_start(list, arg);                                     \
	argv[0] = (char *)arg;                                   \
	for (size_t i = 1; i <= count; i++)                      \
		argv[i] = va_arg(list, char *);                  \
	last;                                                    \
	va_end(list)

int execl(const char *path, const char *arg, ...)
{
	COLLECT(arg, argv, (void)0);
	return execv(path, argv);
}

int execlp(const char *file, const char *arg, ...)
{
	COLLECT(arg, argv, (void)0);
	return execvp(file, argv);
}

int execle(const char *path, const char *arg, ...)
{
	char *const *environment;

	COLLECT(arg, argv, environment = va_arg(list, char *const *));
	return execve(path, argv, environment);
}
