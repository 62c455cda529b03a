// SPDX-License-Identifier: Apache-2.0
/*
 * Programs that live as chains of forks: each link sleeps, forks the next one, and ends. What exec brought in can live so.
 *
 *     chain CGROUP_PROCS CHAINS MICROSECONDS SECONDS
 *
 * The links sleep for so long at first. After each STEADY seconds they sleep twice as long, up to about half a second:
 * on an emulator beside other work a look takes longer than a link of a few milliseconds lives.
 *
 * Starts so many chains in the cgroup, each by an exec, and waits until they have ended, which they do by themselves.
 * It takes their orphans, as a container's init would. Each chain writes a byte to stdout once it is in the cgroup.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define STEADY 20.0 /* seconds */
#define SLOWEST 500000 /* microseconds */

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static int live(long microseconds, double end)
{
	double steady = now() + STEADY;

	while (now() < end) {
		struct timespec length = {microseconds / 1000000, microseconds % 1000000 * 1000};

		nanosleep(&length, NULL);
		if (now() > steady && microseconds < SLOWEST) {
			microseconds *= 2;
			steady += STEADY;
		}
		if (fork() != 0)
			return 0;
	}
	return 0;
}

static int enter(const char *path, char **words)
{
	int file = open(path, O_WRONLY);

	if (file < 0 || write(file, "0", 1) != 1) {
		perror(path);
		return 1;
	}
	close(file);
	if (write(1, "e", 1) != 1)
		return 1;
	execv("/proc/self/exe", words);
	perror("exec");
	return 1;
}

int main(int count, char **words)
{
	char *chain[] = {words[0], "--", words[3], words[4], NULL};

	if (count == 4)
		return live(atol(words[2]), now() + atof(words[3]));
	if (count != 5)
		return 2;
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	for (int number = atoi(words[2]); number > 0; number--)
		if (fork() == 0)
			return enter(words[1], chain);
	while (wait(NULL) > 0)
		;
	return 0;
}
