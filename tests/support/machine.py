# SPDX-License-Identifier: Apache-2.0
"""A machine to install on: /usr, /etc, /run and /var/log as a command sees them are scratch,
over what this one has.

Nothing of the real ones is changed. Each command runs in a mount namespace of its own; what it
wrote is kept, and lies below the directory of the machine, where `path` finds it.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.kernel.inside import REAL_ROOT
from tests.support.cgroups import mount_point
from tests.support.hook import DEADLINE, shipped
from tests.support.leftovers import own_mark

CPUINFO = Path(__file__).with_name("cpuinfo")
"""What /proc/cpuinfo shows there, whatever CPU this machine has:
of AMD's `doctor` says what they cannot count.
"""
LAYERED = ("usr", "etc")
PROGRAM = "/usr/libexec/oci/hooks.d/resctrl-mon-hook.pyz"
LINK = "/usr/bin/resctrl-mon-hook"
HOOKS_DIR = "/usr/share/containers/oci/hooks.d"
HIDDEN = ("/usr/libexec/oci", "/usr/share/containers/oci", "/etc/containers/oci")
"""Directories of this machine in which the hook may be installed:
those of a scratch machine are empty.
"""
AT_BOOT = "/etc/tmpfiles.d/resctrl-mon-hook-stub-usr.conf"
LEFT = {PROGRAM: "#!/bin/true\n", AT_BOOT: f"r! {PROGRAM}\nr! {AT_BOOT}\n"}
"""What an uninstallation leaves: the stub, and what removes it at the next boot."""
UNPRIVILEGED = ("setpriv", "--reuid=65534", "--clear-groups")
"""What a command is started by, to run as a user other than root."""
UNITS = "/usr/lib/systemd/system/resctrl-mon-hook-reconcile"
LOCK = "/tmp/resctrl-mon-hook-tests.lock"


def missing() -> str | None:
    """Why there cannot be such a machine here; None if there can."""
    if os.geteuid() != 0:
        return "not root"
    if "\toverlay\n" not in Path("/proc/filesystems").read_text():
        return "no overlayfs"
    return None


def missing_with_model() -> str | None:
    """The same of a machine whose resctrl is the model."""
    if REAL_ROOT is not None:
        return "needs the model, and this resctrl is real"
    if not Path("/dev/fuse").exists():
        return "needs /dev/fuse"
    return missing()


@contextmanager
def shown_to_all(*, alone: bool) -> Iterator[None]:
    """`alone`: meanwhile a process is one of the host's to all that looks,
    so no scratch machine runs a command.
    """
    with open(LOCK, "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield


def beside(name: str, *arguments: str, mounts: str = "") -> list[str]:
    """What a command is started by, to have a process of this name and these arguments
    beside it, and no others.

    Both are in namespaces of pids and of cgroups of their own: to each other they are the host's
    processes, and to the machine's other processes those of a container. `mounts`: shell commands
    that give the process a mount namespace of its own, so that it is none of the host's.
    """
    code = "print(flush=True); import signal; signal.pause()"
    words = f"""exec -a "$0" /usr/bin/python3 -ISc '{code}' "$@" """
    process = (
        f"unshare -m bash -c {shlex.quote(mounts + words)}"
        if mounts
        else f"bash -c {shlex.quote(words)}"
    )
    script = f"mount --bind {CPUINFO} /proc/cpuinfo\n"
    script += f"coproc {process} {shlex.join([name, *arguments])}\nread -r <&${{COPROC[0]}}\n"
    script += "trap 'kill $COPROC_PID; wait' EXIT\n\"$@\""
    alone = [
        "unshare",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        "--cgroup",
        "bash",
        "-c",
        script,
        "bash",
    ]
    cgroup_name = str(
        mount_point() / f"{own_mark()}{secrets.token_hex(4)}/libpod-{secrets.token_hex(32)}.scope"
    )
    within = 'mkdir -p "$0" && (echo $BASHPID >"$0/cgroup.procs" && exec "$@"); status=$?; '
    within += 'rmdir "$0" "${0%/*}"; exit $status'
    return ["bash", "-c", within, cgroup_name, *alone]


class ScratchMachine:
    """See above; what is in its directory already stays.

    `mounts`: shell commands that mount more; `has_run`: whether its /run is its own, too.
    """

    def __init__(self, directory: Path, *mounts: str, has_run: bool = True) -> None:
        self.directory = directory
        self._mounts = list(mounts)
        self._has_run = has_run
        for name in LAYERED:
            (directory / name).mkdir(parents=True, exist_ok=True)
            (directory / f".{name}").mkdir(exist_ok=True)
        for name in ("run", "var/log"):
            (directory / name).mkdir(parents=True, exist_ok=True)
        for path in filter(os.path.isdir, HIDDEN):
            self.path(path).mkdir(parents=True, exist_ok=True)
            os.setxattr(self.path(path), "trusted.overlay.opaque", b"y")

    def mount(self, *commands: str) -> None:
        """Add shell commands that mount more."""
        self._mounts += commands

    def enter(self) -> list[str]:
        """What a command is started by, to run there."""
        lines = ["set -e", f"mount --bind {CPUINFO} /proc/cpuinfo"]
        for name in LAYERED:
            upper, work = self.directory / name, self.directory / f".{name}"
            lines.append(
                f"mount -t overlay over -o lowerdir=/{name},upperdir={upper},workdir={work} /{name}"
            )
        if self._has_run:
            lines.append(f"mount --bind {shlex.quote(str(self.directory / 'run'))} /run")
        lines.append(f"mount --bind {shlex.quote(str(self.directory / 'var/log'))} /var/log")
        return ["unshare", "-m", "sh", "-c", "\n".join([*lines, *self._mounts, 'exec "$@"']), "sh"]

    def run(
        self,
        *words: str | Path,
        before: Sequence[str] = (),
        **more: Any,  # noqa: ANN401
    ) -> subprocess.CompletedProcess[str]:
        """Run a command there; by default the shipped file, if the first word is no path."""
        command = [*words] if str(words[0]).startswith("/") else [shipped(), *words]
        more = {"stdin": subprocess.DEVNULL, "timeout": DEADLINE, "cwd": "/", **more}
        entered = [*self.enter(), *before, *command]
        with shown_to_all(alone=False):
            return subprocess.run(entered, capture_output=True, text=True, check=False, **more)

    def public(self) -> str:
        """The shipped file where anybody can start it: a checkout may be its owner's alone."""
        copied = self.path("/usr/bin/public.pyz")
        copied.parent.mkdir(exist_ok=True)
        shutil.copy(shipped(), copied)
        return "/usr/bin/public.pyz"

    def path(self, path: str) -> Path:
        """Where a path of it lies, if it was written there."""
        return self.directory / path.lstrip("/")

    def put(self, path: str, text: str, mode: int = 0o644) -> Path:
        """Write a file; returns where it lies."""
        target = self.path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        target.chmod(mode)
        return target

    def put_program(self, path: str, script: str) -> None:
        """Write a program of sh."""
        self.put(path, f"#!/bin/sh\n{script}\n", 0o755)

    def written(self) -> dict[str, str]:
        """What was put below /usr and /etc: the text of each file, the target of each link."""
        files = {}
        for top in LAYERED:
            for path in (self.directory / top).rglob("*"):
                name = "/" + str(path.relative_to(self.directory))
                if path.is_symlink():
                    files[name] = os.readlink(path)
                elif path.is_file():
                    files[name] = path.read_text(errors="replace")
        return files
