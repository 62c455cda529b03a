"""A fresh Debian with Podman, for packages to be installed in: made once, in the user's cache directory.

It has no Python: that lies in apt's cache there, so that apt can install it without a network. What goes into it makes
its name, so that another list of packages is another root.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests import provision

SUITE = "bookworm"
PACKAGES = ("podman", "runc", "systemd")
"""What is installed, with all that it needs. systemd: does not run there, and says which units would be started."""
AT_HAND = ("python3",)
"""What apt can install without a network, with all that it needs, and nothing that is only recommended."""
COMMAND = (
    "mmdebstrap",
    "--quiet",
    "--variant=apt",
    f"--include={','.join(PACKAGES)}",
    f'--customize-hook=APT_CONFIG="$MMDEBSTRAP_APT_CONFIG" apt-get install -qq -d {" ".join(AT_HAND)}',
    "--skip=cleanup/apt",
    SUITE,
)


class CannotMake(Exception):
    """There is no such root, and none can be made here; the message is one line that says why."""


def ready() -> Path:
    """The directory of the root, which nobody may write to; made if there is none yet: 3 minutes.

    Two at once: the second waits and takes what the first has made. Killed: the next one clears away what is left.
    """
    target = cache() / hashlib.sha256("\n".join(COMMAND).encode()).hexdigest()[:16]
    if target.is_dir():
        return target
    cache().mkdir(parents=True, exist_ok=True)
    with _alone(cache() / "lock"):
        for left in cache().glob(".work-*"):
            shutil.rmtree(left)
        if not target.is_dir():
            _make(target)
    return target


def cache(environment: Mapping[str, str] = os.environ) -> Path:
    return provision.cache("debian", environment=environment)


def _make(target: Path) -> None:
    if absent := provision.install(COMMAND[:1]):
        raise CannotMake("; ".join(absent))
    print(f"debian: making a fresh {SUITE} in {target}, once: about 3 minutes", file=sys.stderr, flush=True)
    work = Path(tempfile.mkdtemp(prefix=".work-", dir=cache()))
    done = subprocess.run(
        [*COMMAND, work], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.startswith("E: ")] or done.stderr.splitlines()
        raise CannotMake(f"mmdebstrap (offline?): {(said or ['it does not say why'])[0]}")
    work.rename(target)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Holds the lock file; it goes with the process, however that ends."""
    with open(path, "w", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
