"""The first code of ours that runs, by either way into the .pyz: its own first line, or `python3 FILE.pyz`.

The first line makes Python run `-c` code, which gives the file's path where the first argument is otherwise. It also
makes every end that is not `leave` exit with 0: a hook that fails for whatever reason must not fail the container.
"""

import sys

from hook import entry, system

system.leave(entry.main(sys.argv[2:] if sys.argv[0] == "-c" else sys.argv[1:]))
