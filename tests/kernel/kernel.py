# SPDX-License-Identifier: Apache-2.0
"""The guest's kernel: Linux 7.x with its own resctrl code over a faked RDT,
built from Debian's source package.

Its directory in the cache is named by what the build depends on, and has bzImage, config and
manifest.json. A kernel that was built from the same things is used whatever its version is.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from fetch import provision
from fetch.apt import Apt, CannotFetch, run

HERE = Path(__file__).resolve().parent
PATCH = HERE / "fake-rdt.patch"
CONFIG = HERE / "config"
# The version that the patch was made from, which is taken wherever there is a choice.
MADE_FOR = "7.2"
# Those with short lists first.
SUITES = ("bookworm-backports", "trixie-backports", "trixie", "testing", "sid")
DISK = 4 << 30
# In the source tree, with $CONFIG
CONFIGURE = (
    "make -s allnoconfig",
    './scripts/kconfig/merge_config.sh -m .config "$CONFIG"',
    "make -s olddefconfig",
)
COMPILE = 'nice make -j"$(nproc)" bzImage'
IMAGE = "arch/x86/boot/bzImage"


class CannotBuild(Exception):
    """There is no kernel, and none can be made here; the message is one line that says why."""


class Package(NamedTuple):
    """A linux-source package in one of Debian's suites."""

    suite: str
    name: str
    version: str

    @property
    def linux(self) -> tuple[int, ...]:
        return tuple(map(int, self.name.rpartition("-")[2].split(".")))


def say(line: str) -> None:
    print(f"kernel: {line}", file=sys.stderr, flush=True)


def ready() -> Path:
    """The bzImage; built if there is none yet."""
    if platform.machine() != "x86_64":
        raise CannotBuild(
            f"the guest's kernel is for x86_64, as RDT is, and this is {platform.machine()}"
        )
    if os.geteuid() != 0:
        raise CannotBuild("not root, and the guest is to see the whole of the host's /")
    image = find()
    if absent := provision.install(provision.GUEST if image else provision.KERNEL):
        raise CannotBuild("; ".join(absent))
    return image or build()


def find() -> Path | None:
    """The bzImage that was built last from what is here now."""
    images = []
    for manifest in cache().glob("*/manifest.json"):
        if json.loads(manifest.read_text(encoding="utf-8"))["inputs"] == inputs():
            images.append(manifest.with_name("bzImage"))
    return max(images, key=lambda image: image.stat().st_mtime, default=None)


def cache() -> Path:
    return provision.cache("kernel")


def inputs() -> str:
    """A hash of all that we put into a build."""
    parts = [PATCH.read_bytes(), CONFIG.read_bytes(), "\n".join([*CONFIGURE, COMPILE]).encode()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def build() -> Path:
    """Build the kernel, from Debian's newest fitting source package.

    Two at once: the second waits and takes what the first has made. Killed:
    the next one clears away what is left.
    """
    cache().mkdir(parents=True, exist_ok=True)
    with provision.alone(cache() / "lock"):
        if image := find():
            return image
        for left in cache().glob(".work-*"):
            shutil.rmtree(left)
        if shutil.disk_usage(cache()).free < DISK:
            raise CannotBuild(
                f"{cache()}: building takes {DISK >> 30} GB of disk, and there is less"
            )
        say(
            "none was built yet from these sources. That takes about 10 minutes on 2 cores, and 3 "
            "GB until then"
        )
        with tempfile.TemporaryDirectory(prefix=".work-", dir=cache()) as work:
            try:
                return _build(Path(work))
            except CannotFetch as error:
                raise CannotBuild(str(error)) from error


def _build(work: Path) -> Path:
    """Build in a directory that is thrown away."""
    package = _choose(work)
    say(f"downloading {package.name} {package.version} from {package.suite}")
    Apt(work / package.suite, package.suite)("apt-get", "download", package.name, cwd=work)
    (deb,) = work.glob("*.deb")
    run(["dpkg-deb", "--extract", deb, work / "package"])
    run(["tar", "-C", work, "-xf", work / f"package/usr/src/{package.name}.tar.xz"])
    tree = work / package.name
    command = ["patch", "--batch", "--forward", "-p1", "-d", str(tree), "-i", str(PATCH)]
    done = subprocess.run(command, env={**os.environ}, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CannotBuild(
            f"{PATCH.name} does not apply to {package.name} {package.version}: "
            f"{done.stdout[-1000:]}"
        )
    _configure(tree)
    _compile(tree)
    return _keep(work / "out", tree, package)


def _choose(work: Path) -> Package:
    """The version that the patch was made for, as soon as it is seen;
    else the newest 7.x of all suites.
    """
    lines = []
    for suite in SUITES:
        apt = Apt(work / suite, suite)
        with suppress(CannotFetch):  # this mirror lacks it
            apt("apt-get", "update")
        listing = apt("apt-cache", "search", "--names-only", "^linux-source-[0-9.]+$")
        for name in [line.split()[0] for line in listing.splitlines()]:
            shown = apt("apt-cache", "show", "--no-all-versions", name)
            package = Package(suite, name, shown.partition("\nVersion: ")[2].partition("\n")[0])
            if name == f"linux-source-{MADE_FOR}":
                return package
            if package.linux[0] == int(MADE_FOR[0]):
                lines.append(package)
    if not lines:
        wanted = f"linux-source-{MADE_FOR[0]}.x"
        raise CannotBuild(
            f"no {wanted} in {', '.join(SUITES)} of this machine's mirror of Debian (offline?)"
        )
    return max(lines, key=lambda package: package.linux)


def _configure(tree: Path) -> None:
    for command in CONFIGURE:
        run(["bash", "-c", command], tree, {**os.environ, "CONFIG": str(CONFIG)})
    have = set((tree / ".config").read_text(encoding="utf-8").splitlines())
    wanted = {
        line for line in CONFIG.read_text(encoding="utf-8").splitlines() if line.endswith("=y")
    }
    if lost := sorted(wanted - have):
        raise CannotBuild(f"{CONFIG.name}: this kernel does not take {' '.join(lost)}")


def _compile(tree: Path) -> None:
    log = cache() / "make.log"
    say(f"compiling: see {log}")
    command = ["setpriv", "--pdeathsig=KILL", "bash", "-c", f"exec {COMPILE}"]
    null, both = subprocess.DEVNULL, subprocess.STDOUT
    with log.open("wb") as file:
        done = subprocess.run(command, cwd=tree, stdin=null, stdout=file, stderr=both, check=False)
    if done.returncode != 0:
        raise CannotBuild(f"make failed: see {log}")


def _keep(out: Path, tree: Path, package: Package) -> Path:
    manifest = {"inputs": inputs(), "source": package.name, "version": package.version}
    out.mkdir()
    shutil.copyfile(tree / IMAGE, out / "bzImage")
    shutil.copyfile(tree / ".config", out / "config")
    (out / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    target = cache() / hashlib.sha256(f"{inputs()} {package.version}".encode()).hexdigest()[:16]
    shutil.rmtree(target, ignore_errors=True)
    out.rename(target)
    say(f"done: {target / 'bzImage'}")
    return target / "bzImage"
