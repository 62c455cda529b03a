"""The first code of ours that runs, by either way into the .pyz: its own first line, or `python3 FILE.pyz`.

The first line makes Python run this as `-c` code, with the file's path where the first argument is otherwise, and
makes every end that is not `leave` exit with 0: a hook that fails for whatever reason must not fail the container.
"""

import sys

if sys.argv[0] == "-c":
    del sys.argv[0]
    sys.path.insert(0, sys.argv[0])

from hook import entry, system

system.leave(entry.main(sys.argv[1:]))
