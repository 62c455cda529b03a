# SPDX-License-Identifier: Apache-2.0
"""An interpreter that has started already, of which hooks and containers' inits are forked: a start is most of a hook.

    python3 -IS zygote.py BOOT ERRORS PYZ OPTION...

BOOT is what starts the .pyz; what hooks say goes to the file ERRORS. Each line on stdin is answered with a number:
`init` with the pid of a process that does nothing, `end PID` when that one is gone, `hook STATE` with the wait status
of a hook. All that was forked ends with the zygote.
"""

from __future__ import annotations

import posix
import sys
from typing import Callable, NoReturn


def serve(boot: str, errors: str, pyz: str, *options: str) -> None:
    said = posix.open(errors, posix.O_WRONLY | posix.O_CREAT | posix.O_APPEND, 0o600)
    never, held = posix.pipe()

    def init() -> None:
        posix.close(held)
        posix.read(never, 1)

    def hook(state: bytes) -> None:
        stdin, to_stdin = posix.pipe()
        posix.write(to_stdin, state)
        posix.close(to_stdin)
        for old, new in ((stdin, 0), (said, 1), (said, 2)):
            posix.dup2(old, new)
        sys.argv = ["-c", pyz, "hook", *options]
        exec(boot, {"__name__": "__main__"})  # noqa: S102  as the interpreter does by the file's first line

    for line in sys.stdin.buffer:
        verb, _, rest = line.partition(b" ")
        if verb == b"hook":
            answer = posix.waitpid(forked(lambda: hook(rest)), 0)[1]  # noqa: B023  it has ended before the next line
        elif verb == b"end":
            posix.kill(int(rest), 9)
            posix.waitpid(int(rest), 0)
            answer = 0
        else:
            answer = forked(init)
        posix.write(1, b"%d\n" % answer)


def forked(run: Callable[[], None]) -> int:
    """The pid of a process that does this, and no more."""
    pid = posix.fork()
    return pid or _child(run)


def _child(run: Callable[[], None]) -> NoReturn:
    try:
        run()
    finally:
        posix._exit(99)


if __name__ == "__main__":
    serve(*sys.argv[1:])
