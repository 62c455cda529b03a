# SPDX-License-Identifier: Apache-2.0
"""A cached root as a machine of its own, as far as programs in it can tell:
see debian.root for such roots.

It lies under an overlay in memory, in a mount namespace, with resctrl where that is looked for, and
a /run of its own. Processes and cgroups are the host's.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.support.containers import DEADLINE

# Ends when its stdin does: with the test, however that ends.
MOUNTS = """
set -e
base=$1 work=$2
shift 2
mount -t tmpfs -o mode=755 tmpfs "$work"
mkdir "$work/upper" "$work/work" "$work/root"
mount -t overlay -o "lowerdir=$base,upperdir=$work/upper,workdir=$work/work" overlay "$work/root"
cd "$work/root"
for name in dev proc sys; do mount --rbind "/$name" "$name"; done
mount -t tmpfs tmpfs sys/fs # a kernel without resctrl has no directory for it
for name in /sys/fs/*; do mkdir ".$name"; mount --rbind "$name" ".$name"; done
mount -t tmpfs -o mode=755 tmpfs run
while [ $# -gt 0 ]; do
    mkdir -p ".$1"
    mount --bind "$2" ".$1"
    shift 2
done
exec chroot . sh -c 'echo ready; exec cat'
"""
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LC_ALL": "C.UTF-8",
    "DEBIAN_FRONTEND": "noninteractive",
}


class Root:
    """`binds`: paths of it, and the directories of the host that are to be there.

    `path`: it, for its host programs.
    """

    def __init__(
        self, base: Path, work: Path, binds: Mapping[str, Path], *, has_network: bool = True
    ) -> None:
        self.path = work / "root"
        pairs = [str(word) for pair in binds.items() for word in pair]
        network = [] if has_network else ["--net"]
        self._holder = subprocess.Popen(
            [
                "unshare",
                "--mount",
                *network,
                "--propagation=private",
                "sh",
                "-c",
                MOUNTS,
                "sh",
                base,
                work,
                *pairs,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        try:
            assert self._holder.stdout is not None
            assert self._holder.stdout.readline() == b"ready\n", (
                "a fresh machine could not be put together"
            )
            assert not self.at("/").samefile("/"), "that is the host"
        except BaseException:
            self.close()
            raise

    def at(self, path: str) -> Path:
        """A path of it. No link that it leads through may be absolute."""
        return Path(f"/proc/{self._holder.pid}/root{path}")

    def enter(self, directory: str = "/") -> list[str]:
        """What a program of it is started by."""
        return [*self.from_outside(), f"--root={self.at('')}", f"--wd={self.at(directory)}"]

    def from_outside(self) -> list[str]:
        """What a program of the host's is started by, which sees it as `path`."""
        return ["nsenter", f"--target={self._holder.pid}", "--mount", "--net"]

    def close(self) -> None:
        """Once nothing of it runs any more. Can be called twice."""
        assert self._holder.stdin is not None
        assert self._holder.stdout is not None
        self._holder.stdin.close()
        self._holder.stdout.close()
        try:
            self._holder.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            self._holder.kill()
            self._holder.wait()
