"""The first code of ours that runs, by whatever way into the .pyz.

Its first line makes Python run `-c` code, which gives the file's path where the first argument is otherwise. It also
makes every end that is not `leave` exit with 0: a hook that fails for whatever reason must not fail the container.
"""

import sys

from hook.base import system
from hook.stages import entry

system.leave(entry.main(sys.argv[2:]))
