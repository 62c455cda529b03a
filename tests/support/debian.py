# SPDX-License-Identifier: Apache-2.0
"""Debians as directories, for tests to run programs in. mmdebstrap makes them once,
in the user's cache directory.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from fetch import provision
from fetch.apt import CannotFetch, run


class CannotMake(Exception):
    """There is no such root, and none can be made here; the message is one line that says why."""


def root(suite: str, *options: str) -> Path:
    """The directory of the root, which is read-only; made if there is none yet: 3 minutes.

    The options make its name, so that other ones are another root; its packages are those of the
    day when it was made. Two at once: the second waits and takes what the first has made. Killed:
    the next one clears away what is left.
    """
    command, target = _plan(suite, options)
    if target.is_dir():
        return target
    cache().mkdir(parents=True, exist_ok=True)
    with provision.alone(cache() / "lock"):
        for left in cache().glob(".work-*"):
            shutil.rmtree(left)
        if not target.is_dir():
            _make(command, target)
    return target


def find(suite: str, *options: str) -> Path | None:
    """The directory of the same root if it has been made; None if it has not."""
    _, target = _plan(suite, options)
    return target if target.is_dir() else None


def _plan(suite: str, options: Sequence[str]) -> tuple[Sequence[str], Path]:
    """The command that makes a root, and the directory that it gets."""
    command = ("mmdebstrap", "--quiet", *options, suite)
    return command, cache() / hashlib.sha256("\n".join(command).encode()).hexdigest()[:16]


def cache(environment: Mapping[str, str] = os.environ) -> Path:
    return provision.cache("debian", environment=environment)


def _make(command: Sequence[str], target: Path) -> None:
    if os.geteuid() != 0:
        raise CannotMake("not root")
    if absent := provision.install(command[:1]):
        raise CannotMake("; ".join(absent))
    suite = command[-1]
    print(
        f"debian: making a fresh {suite} in {target}, once: about 3 minutes",
        file=sys.stderr,
        flush=True,
    )
    work = Path(tempfile.mkdtemp(prefix=".work-", dir=cache()))
    try:
        # Whether this machine's apt takes package lists that are out of date,
        # as those of a mirror of a past day are
        valid = run(
            ["apt-config", "dump", "--no-empty", "--format=%f %v", "Acquire::Check-Valid-Until"]
        ).strip()
        run([*command, work, f"--aptopt={valid or 'Acquire::Check-Valid-Until true'}"])
    except CannotFetch as error:
        raise CannotMake(f"{suite} (offline?): {error}") from error
    work.rename(target)
