# SPDX-License-Identifier: Apache-2.0
"""A fresh Debian as a machine of its own, as far as packages can tell,
without a network but for 127.0.0.1.

Its Podman is configured for what a small VM can do, as a site would do it;
of our hook it knows nothing.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.resctrlfs import Mounted
from tests.support.containers import ULIMITS, Cgroups, Gate, make_rootfs
from tests.support.leftovers import own_mark
from tests.support.root import ENVIRONMENT, Root

PATIENCE = 300.0
"""Seconds for what apt does."""
CHANGES = ("rename", "renameat", "renameat2", "unlink", "unlinkat")
SHARED = "/srv/shared"
RESCTRL = "/sys/fs/resctrl"
ENERGY = "core_energy"
PROGRAMS_ENVIRONMENT = {**ENVIRONMENT, "PODMAN_IGNORE_CGROUPSV1_WARNING": "1"}
"""The cgroups are the host's, and may be v1, of which Podman 5 warns each time."""
CONTAINERS_CONF = f"""
[containers]
default_ulimits = {json.dumps(ULIMITS)}
netns = "none"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
lock_type = "file"
runtime = "runc"
"""
STORAGE_CONF = """
[storage]
driver = "vfs"
graphroot = "/var/lib/containers/storage"
runroot = "/run/containers/storage"
"""
APT_CONF = """
APT::Get::Assume-Yes "true";
APT::Install-Recommends "false";
"""
"""What is only recommended is not at hand."""


class Machine:
    """`shared`: a directory of the host's that it sees as SHARED.

    `root`: its root directory, as the host sees it.
    """

    def __init__(self, base: Path, directory: Path, resctrl: Mounted) -> None:
        self.resctrl = resctrl
        self.shared = directory / "shared"
        self._gates_dir = self.shared / "gates"
        self._gates: list[Gate] = []
        self._started = 0
        self._work = directory / "work"
        for path in (self.shared, self._gates_dir, self._work):
            path.mkdir()
        make_rootfs(self.shared / "rootfs")
        self.cgroups = Cgroups(f"{own_mark()}{os.getpid()}-{directory.name}")
        self._root = Root(
            base, self._work, {SHARED: self.shared, RESCTRL: resctrl.root}, has_network=False
        )
        try:
            self.from_outside("busybox", "ip", "link", "set", "lo", "up")
            (self.at("/etc/containers") / "containers.conf").write_text(CONTAINERS_CONF)
            (self.at("/etc/containers") / "storage.conf").write_text(STORAGE_CONF)
            (self.at("/etc/apt/apt.conf.d") / "unattended").write_text(APT_CONF)
        except BaseException:
            self.close()
            raise

    def at(self, path: str) -> Path:
        """A path of the machine's. No link that it leads through may be absolute."""
        return self._root.at(path)

    def run(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a program in it, in SHARED; stdout and stderr come as one.

        A failure's message holds what it said.
        """
        return self._enter(self._root.enter(SHARED), *words, check=check)

    def from_outside(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a program of the host's, which sees the machine's root as `root`."""
        return self._enter(self._root.from_outside(), *words, check=check)

    @property
    def root(self) -> str:
        return str(self._root.path)

    def _enter(
        self, enter: list[str], *words: str, check: bool
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*enter, *words],
            env=PROGRAMS_ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        if check and done.returncode != 0:
            raise RuntimeError(
                f"{' '.join(words)}: exit status {done.returncode}: {done.stdout.strip()}"
            )
        return done

    @contextmanager
    def started(self, *words: str) -> Iterator[str]:
        """A program that runs in it meanwhile; its first line of stdout."""
        command = [*self._root.enter(SHARED), *words]
        with subprocess.Popen(
            command, env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
        ) as process:
            try:
                assert process.stdout is not None
                yield process.stdout.readline().decode()
            finally:
                process.terminate()

    # Packages

    def has_python(self) -> bool:
        return self.at("/usr/bin/python3").exists()

    def apt(self, *words: str) -> str:
        """As people call it.

        Slower than dpkg, which does the same for a package that needs no other.
        """
        return self.run("apt", *words).stdout

    def dpkg(self, *words: str) -> str:
        return self.run("dpkg", *words).stdout

    def rpm(self, *words: str, check: bool = True) -> str:
        """The host's rpm, on a database of the machine's.

        What is needed is not looked for: that is Debian's there.
        """
        return self.from_outside("rpm", *self.rpm_options, "--nodeps", *words, check=check).stdout

    @property
    def rpm_options(self) -> tuple[str, str]:
        """Debian's rpm has its database elsewhere than those of the
        distributions that are made of RPMs.
        """
        return f"--root={self.root}", "--dbpath=/var/lib/rpm"

    def changes(self, *words: str) -> list[str]:
        """Run a program of the host's; the files that it puts in place,
        each by its directory's name and its own.

        In that order. Those that it takes away have `unlink` before them.
        """
        trace = self.shared / "trace"
        self.from_outside(
            "strace", "-f", "-qq", "-y", f"--output={trace}", f"--trace={','.join(CHANGES)}", *words
        )
        done = [line for line in whole_calls(trace.read_text()) if line.endswith(" = 0")]
        return [_name_change(line) for line in done]

    # Containers

    def podman_run(self, name: str, *options: str) -> str:
        """`podman run`, with what a container needs to be one of these tests; its ID,
        once its command runs.
        """
        self._started += 1
        gate = Gate(f"{name}-{self._started}", self._gates_dir)
        self._gates.append(gate)
        place = [
            f"--name={name}",
            f"--cgroup-parent={self.cgroups.path}",
            f"--volume={SHARED}/gates:/gates",
        ]
        done = self.run(
            "podman", "run", "-d", *place, *options, "--rootfs", f"{SHARED}/rootfs", *gate.command
        )
        gate.wait_up()
        return done.stdout.split()[-1]

    def pid(self, name: str) -> int:
        return int(self.run("podman", "inspect", "--format={{.State.Pid}}", name).stdout)

    def podman_rm(self, *names: str) -> None:
        """Ends containers; their poststop hooks have run when this returns.

        All of them if none is named.
        """
        self.run("podman", "rm", "-f", "-t", "0", *(names or ["-a"]))
        while self._gates and not names:
            self._gates.pop().close()

    def spend(self, container: str, joules: int) -> None:
        """Its group is charged for some energy."""
        self.resctrl.control(
            do="add",
            group=f"/mon_groups/oci-{container}",
            domain="mon_PERF_PKG_00",
            event=ENERGY,
            amount=joules,
        )

    def groups(self) -> dict[str, list[int]]:
        """The mon_groups of the root ctrl_group by name, with their tasks."""
        return self.resctrl.mon_groups()

    # The end

    def close(self) -> None:
        with suppress(RuntimeError, subprocess.TimeoutExpired):
            self.podman_rm()
        self.cgroups.end()
        self._root.close()


def _name_change(call: str) -> str:
    """See Machine.changes.

    A relative path comes after its directory's descriptor, which `strace -y` shows.
    """
    directory, path = re.findall('(?:<([^>"]*)>, )?"([^"]+)"', call)[-1]
    name = "/".join(os.path.join(directory, path).split("/")[-2:])
    return f"unlink {name}" if " unlink" in call else name


def whole_calls(trace: str) -> list[str]:
    """The lines of `strace -f`, in which a call that another process interrupted is one
    line again, where it ended.
    """
    begun: dict[str, str] = {}
    whole = []
    for line in trace.splitlines():
        pid = line.split(maxsplit=1)[0]
        resumed = re.fullmatch(r"\d+ +<\.\.\. \w+ resumed>(.*)", line)
        if line.endswith(" <unfinished ...>"):
            begun[pid] = line[: -len(" <unfinished ...>")]
        else:
            whole.append(begun.pop(pid) + resumed[1] if resumed else line)
    return whole
