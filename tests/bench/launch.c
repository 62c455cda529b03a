// SPDX-License-Identifier: Apache-2.0
/*
 * Starts a command as often as stdin holds states (each ends in a NUL), all at once; a state is the stdin of one. For
 * each, as they end, prints: nanoseconds since all were let go, microseconds of CPU, peak memory in KiB, wait status.
 *
 *   launch [-r] COMMAND [ARGUMENT...]
 *     -r  before all else on the machine, whatever that does (SCHED_FIFO); without it, or where that is not allowed,
 *         before most else. Not for what makes cgroups, where it may be forbidden.
 *
 * Static, so that it is small: a process begins with the peak memory of the one that started it.
 */
#define _GNU_SOURCE
#include <err.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MOST_BYTES (8 << 20)

static char states[MOST_BYTES];

static long long now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000000LL + time.tv_nsec;
}

static void make_pipe(int ends[2])
{
	if (pipe2(ends, O_CLOEXEC))
		err(2, "pipe2");
}

/* As far as we may. Where there are autogroups (sched(7)) a priority counts among a session only, which has its own. */
static void go_first(int real_time)
{
	struct sched_param least = { .sched_priority = 1 };
	int session;

	if (real_time && !sched_setscheduler(0, SCHED_FIFO, &least))
		return;
	setsid();
	setpriority(PRIO_PROCESS, 0, -20);
	session = open("/proc/self/autogroup", O_WRONLY | O_CLOEXEC);
	if (session >= 0 && write(session, "-20", 3) == 3)
		close(session);
}

static size_t read_states(void)
{
	size_t size = 0;
	ssize_t got;

	while ((got = read(0, states + size, sizeof(states) - size)) > 0)
		size += got;
	if (got < 0 || size == sizeof(states))
		err(2, "states");
	return size;
}

/* A pipe that holds the state, and ends after it, as from a runtime. */
static int holding(const char *state)
{
	size_t size = strlen(state);
	int ends[2];

	make_pipe(ends);
	if (fcntl(ends[1], F_SETFL, O_NONBLOCK) || write(ends[1], state, size) != (ssize_t)size)
		err(2, "a state too long for a pipe");
	close(ends[1]);
	return ends[0];
}

/* All but the exec: says that it is ready by closing its end of that pipe, and waits until the gate is closed. */
static void start(char **command, int input, int ready[2], int gate[2])
{
	char byte;
	pid_t pid = fork();

	if (pid < 0)
		err(2, "fork");
	if (pid)
		return;
	dup2(input, 0);
	dup2(2, 1);
	close(gate[1]);
	close(ready[0]);
	close(ready[1]);
	if (read(gate[0], &byte, 1) == 0)
		execvp(command[0], command);
	err(127, "%s", command[0]);
}

static long microseconds(struct timeval time)
{
	return time.tv_sec * 1000000L + time.tv_usec;
}

int main(int argc, char **argv)
{
	int real_time = 0, count = 0, ready[2], gate[2], status, option;
	struct rusage used;
	char byte;

	while ((option = getopt(argc, argv, "+r")) > 0)
		real_time = option == 'r';
	if (optind == argc)
		errx(2, "launch [-r] COMMAND [ARGUMENT...]");
	go_first(real_time);
	make_pipe(ready);
	make_pipe(gate);
	size_t size = read_states();
	for (char *state = states; state < states + size; state += strlen(state) + 1, count++) {
		int input = holding(state);
		start(argv + optind, input, ready, gate);
		close(input);
	}
	close(ready[1]);
	if (read(ready[0], &byte, 1))
		err(2, "ready");
	long long begin = now();
	close(gate[1]);
	for (int left = count; left;) {
		if (wait4(-1, &status, 0, &used) < 0)
			err(2, "wait4");
		long long ended = now() - begin;
		long cpu = microseconds(used.ru_utime) + microseconds(used.ru_stime);
		printf("%lld %ld %ld %d\n", ended, cpu, used.ru_maxrss, status);
		left--;
	}
	return 0;
}
