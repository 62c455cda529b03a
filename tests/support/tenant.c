// SPDX-License-Identifier: Apache-2.0
/*
 * A container's process, which waits until it is killed, whatever its words are.
 *
 *     PROGRAM --enter ROOT PATH WORD...     takes ROOT for its root, and becomes PATH with these words
 */
#include <err.h>
#include <string.h>
#include <unistd.h>

int main(int count, char **words)
{
	if (count > 4 && !strcmp(words[1], "--enter")) {
		if (chroot(words[2]) || chdir("/"))
			err(1, "%s", words[2]);
		execv(words[3], words + 4);
		err(1, "%s", words[3]);
	}
	for (;;)
		pause();
}
