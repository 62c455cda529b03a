// SPDX-License-Identifier: Apache-2.0
/*
 * The load of all benchmarks. Static: what it runs in may have nothing else, and a process begins with the peak memory
 * of the one that started it, so that has to be small.
 *
 *   load start [-r] COMMAND [ARGUMENT...]
 *       Starts a command as soon as there is something on stdin, which is the command's, too. When it has ended,
 *       prints nanoseconds of time, microseconds of CPU, peak memory in KiB, and the wait status. -r: before all else
 *       on the machine (SCHED_FIFO), where that is allowed. Not for what makes cgroups, where it may be forbidden.
 *   load crowd FILE... -- COMMAND [ARGUMENT...]
 *       Starts a command for each FILE, its stdin, without waiting for one before the next. When all have ended, prints
 *       nanoseconds of time, and their wait statuses, by `or`.
 *   load spin LOOPS THREADS
 *       Does so many loops, shared out among the threads.
 *   load job LOOPS COUNTER...
 *       Does so many loops; prints the ns of CPU time that they took, and by how much the sum of the COUNTERs grew.
 *   load begin OUT FILE... -- COMMAND...
 *       Copies the FILEs to OUT, and becomes COMMAND.
 */
#define _GNU_SOURCE
#include <err.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MOST 64

static unsigned long loops;

static long long now(clockid_t clock)
{
	struct timespec time;

	clock_gettime(clock, &time);
	return time.tv_sec * 1000000000LL + time.tv_nsec;
}

static long microseconds(struct timeval time)
{
	return time.tv_sec * 1000000L + time.tv_usec;
}

static void start(char **command, int real_time)
{
	struct sched_param least = { .sched_priority = 1 };
	struct pollfd input = { .fd = 0, .events = POLLIN };
	struct rusage used;
	int status;

	if (real_time)
		sched_setscheduler(0, SCHED_FIFO, &least);
	poll(&input, 1, -1);
	long long begin = now(CLOCK_MONOTONIC);
	pid_t pid = fork();
	if (pid == 0) {
		dup2(2, 1);
		execvp(command[0], command);
		err(127, "%s", command[0]);
	}
	if (pid < 0 || wait4(pid, &status, 0, &used) < 0)
		err(2, "%s", command[0]);
	long long ended = now(CLOCK_MONOTONIC) - begin;
	long cpu = microseconds(used.ru_utime) + microseconds(used.ru_stime);
	printf("%lld %ld %ld %d\n", ended, cpu, used.ru_maxrss, status);
}

static void crowd(char **files)
{
	int count = 0, status, statuses = 0;

	while (files[count] && strcmp(files[count], "--"))
		count++;
	char **command = files + count + 1;
	long long begin = now(CLOCK_MONOTONIC);
	for (int i = 0; i < count; i++) {
		pid_t pid = fork();
		if (pid == 0) {
			dup2(open(files[i], O_RDONLY | O_CLOEXEC), 0);
			execv(command[0], command);
			err(127, "%s", command[0]);
		}
		if (pid < 0)
			err(2, "fork");
	}
	while (wait(&status) > 0)
		statuses |= status;
	printf("%lld %d\n", now(CLOCK_MONOTONIC) - begin, statuses);
}

static void *spin(void *unused)
{
	for (unsigned long i = 0; i < loops; i++)
		__asm__ volatile("");
	return unused;
}

static void spin_all(int threads)
{
	pthread_t others[MOST];

	if (threads < 1 || threads > MOST)
		errx(2, "1 to %d threads", MOST);
	loops /= threads;
	for (int i = 1; i < threads; i++)
		if (pthread_create(&others[i], NULL, spin, NULL))
			errx(1, "pthread_create");
	spin(NULL);
	for (int i = 1; i < threads; i++)
		pthread_join(others[i], NULL);
}

/* The last file is cpu.stat, where what runs is counted up to the last tick only: asking for the thread's own clock
 * brings it up to now. The others are counters, which are exact at any time. Opened first, read close together. */
static void begin(char **arguments)
{
	static char text[MOST * 1024];
	int opened[MOST], count = 0, out = open(*arguments, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
	size_t length = 0;

	if (out < 0)
		err(1, "%s", *arguments);
	char **files = arguments + 1;
	for (; files[count] && strcmp(files[count], "--"); count++)
		if (count == MOST || (opened[count] = open(files[count], O_RDONLY | O_CLOEXEC)) < 0)
			err(1, "%s", files[count]);
	for (int i = 0; i < count; i++) {
		if (i == count - 1)
			now(CLOCK_THREAD_CPUTIME_ID);
		ssize_t got = read(opened[i], text + length, 1024);
		if (got < 0)
			err(1, "%s", files[i]);
		length += got;
	}
	if (write(out, text, length) != (ssize_t)length)
		err(1, "write");
	execv(files[count + 1], files + count + 1);
	err(1, "%s", files[count + 1]);
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

static void do_job(char **counters)
{
	long long start = now(CLOCK_PROCESS_CPUTIME_ID), charged = sum(counters);

	spin_all(1);
	charged = sum(counters) - charged;
	printf("%lld %lld\n", now(CLOCK_PROCESS_CPUTIME_ID) - start, charged);
}

int main(int argc, char **argv)
{
	const char *what = argc > 2 ? argv[1] : "";
	int real_time = argc > 2 && !strcmp(argv[2], "-r");

	if (!strcmp(what, "start") && argc > 2 + real_time) {
		start(argv + 2 + real_time, real_time);
	} else if (!strcmp(what, "crowd") && argc > 4) {
		crowd(argv + 2);
	} else if (!strcmp(what, "begin") && argc > 4) {
		begin(argv + 2);
	} else if (!strcmp(what, "job") && argc > 3) {
		loops = strtoul(argv[2], NULL, 10);
		do_job(argv + 3);
	} else if (!strcmp(what, "spin") && argc == 4) {
		loops = strtoul(argv[2], NULL, 10);
		spin_all(atoi(argv[3]));
	} else {
		errx(2, "see load.c");
	}
	return 0;
}
