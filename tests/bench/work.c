// SPDX-License-Identifier: Apache-2.0
/*
 * The containers' program, static: what it runs in has nothing else.
 *
 *   work spin LOOPS THREADS               so many loops, shared out among the threads
 *   work job LOOPS COUNTER...             so many loops; prints what it used meanwhile, in ns of CPU time, and by how
 *                                         much the sum of the COUNTERs grew
 *   work begin OUT FILE... -- COMMAND...  copies the FILEs to OUT, and becomes COMMAND
 */
#include <err.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MOST 64

static unsigned long loops;

static void *spin(void *unused)
{
	for (unsigned long i = 0; i < loops; i++)
		__asm__ volatile("");
	return unused;
}

static void spin_all(int threads)
{
	pthread_t others[MOST];

	for (int i = 1; i < threads; i++)
		if (pthread_create(&others[i], NULL, spin, NULL))
			errx(1, "pthread_create");
	spin(NULL);
	for (int i = 1; i < threads; i++)
		pthread_join(others[i], NULL);
}

/* The last file is cpu.stat, where what runs is counted up to the last tick only: asking for the thread's own clock
 * brings it up to now. The others are counters, which are exact at any time. Opened first, read close together. */
static void copy(char **files, int count, int out)
{
	static char text[MOST * 1024];
	int opened[MOST];
	size_t length = 0;
	struct timespec now;

	for (int i = 0; i < count; i++)
		if ((opened[i] = open(files[i], O_RDONLY | O_CLOEXEC)) < 0)
			err(1, "%s", files[i]);
	for (int i = 0; i < count; i++) {
		if (i == count - 1)
			clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
		ssize_t got = read(opened[i], text + length, 1024);
		if (got < 0)
			err(1, "%s", files[i]);
		length += got;
	}
	if (write(out, text, length) != (ssize_t)length)
		err(1, "write");
}

static void begin(char **arguments)
{
	int count = 0, out = open(*arguments, O_WRONLY | O_CLOEXEC);

	if (out < 0)
		err(1, "%s", *arguments);
	for (arguments++; arguments[count] && strcmp(arguments[count], "--"); count++)
		;
	if (!arguments[count] || count > MOST)
		errx(2, "no --, or too many files");
	copy(arguments, count, out);
	execv(arguments[count + 1], arguments + count + 1);
	err(1, "%s", arguments[count + 1]);
}

/* A counter that has never run has no number. */
static long long sum(char **counters)
{
	long long found = 0, value;

	for (; *counters; counters++) {
		FILE *file = fopen(*counters, "r");
		if (!file)
			err(1, "%s", *counters);
		if (fscanf(file, "%lld", &value) == 1)
			found += value;
		fclose(file);
	}
	return found;
}

static long long used(void)
{
	struct timespec now;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
	return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static void do_job(char **counters)
{
	long long start = used(), charged = sum(counters);

	spin_all(1);
	charged = sum(counters) - charged;
	printf("%lld %lld\n", used() - start, charged);
}

int main(int argc, char **argv)
{
	int threads;

	if (argc > 4 && !strcmp(argv[1], "begin"))
		begin(argv + 2);
	if (argc > 3 && !strcmp(argv[1], "job")) {
		loops = strtoul(argv[2], NULL, 10);
		do_job(argv + 3);
		return 0;
	}
	if (argc != 4 || strcmp(argv[1], "spin"))
		errx(2, "see work.c");
	threads = atoi(argv[3]);
	if (threads < 1 || threads > MOST)
		errx(2, "1 to %d threads", MOST);
	loops = strtoul(argv[2], NULL, 10) / threads;
	spin_all(threads);
	return 0;
}
