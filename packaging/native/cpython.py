# SPDX-License-Identifier: Apache-2.0
"""A static CPython, built once from Debian's source package and kept outside of the checkout.

What the build depends on makes the name of its directory in the cache: the options and the training below, and the
compiler. One that was built from the same things is used whatever version of the source package it is; `--release`
asks Debian for its newest, with the fixes of its security team.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from pyz import BuildError
from tests import provision
from tests.support.apt import Apt, CannotFetch, run

HERE = Path(__file__).resolve().parent
TRAINING = HERE / "training.py"
SOURCE, SUITE = "python3.13", "trixie"
NEEDED = ("gcc", "libc6-dev", "zlib1g-dev", "make", "dpkg-dev", "xz-utils")
# Modules in C that are built in, beside those that every CPython has. The core needs _json, _socket, fcntl and select.
MODULES = (
    *("array", "binascii", "fcntl", "math", "select", "termios", "zlib", "_bisect", "_blake2", "_csv", "_datetime"),
    *("_heapq", "_json", "_md5", "_opcode", "_posixsubprocess", "_random", "_sha1", "_sha2", "_sha3", "_socket"),
    "_struct",
)
OPTIONS = (
    "--disable-shared",
    "--disable-test-modules",
    "--without-ensurepip",
    "--without-doc-strings",
    "--without-readline",
    "MODULE_BUILDTYPE=static",
    "LDFLAGS=-static",
    "LINKFORSHARED= ",
    "OPT=-DNDEBUG -O3",
)
# Profile-guided: a hook takes a tenth less. The same run in the same place gives the same profile.
TRAINED = ("--enable-optimizations", f"PROFILE_TASK=-I -S -B {TRAINING.name}")
DISK = 2 << 30
LIBRARY = "lib/python3.13"  # where the interpreter finds it


class Interpreter(NamedTuple):
    """A CPython in the cache."""

    directory: Path

    @property
    def python(self) -> Path:
        """The interpreter, to compile modules with."""
        return self.directory / "python"

    @property
    def library(self) -> Path:
        """The modules of the standard library in Python."""
        return self.directory / LIBRARY

    @property
    def version(self) -> str:
        """Of the source package."""
        found: str = json.loads((self.directory / "manifest.json").read_text(encoding="utf-8"))["version"]
        return found


def ready(*, newest: bool = False) -> Interpreter:
    """Return the CPython; built if there is none yet, or with `newest` if Debian's source package is a newer one."""
    if absent := provision.install(NEEDED):
        raise BuildError("; ".join(absent))
    cache().mkdir(parents=True, exist_ok=True)
    try:
        with provision.alone(cache() / "lock"):  # two at once: the second takes what the first has made
            found = find()
            if found is None or (newest and found.version != _newest()):
                found = _build()
            return found
    except CannotFetch as error:
        raise BuildError(f"no source of CPython: {error}") from error


def find() -> Interpreter | None:
    """Return the CPython that was built last from what is here now; None if there is none, or no compiler."""
    try:
        name = _inputs()
    except (OSError, CannotFetch):
        return None
    found = [path for path in cache().glob("*/manifest.json") if json.loads(path.read_text())["inputs"] == name]
    newest = max(found, key=lambda path: path.stat().st_mtime, default=None)
    return Interpreter(newest.parent) if newest else None


def cache() -> Path:
    return provision.cache("cpython")


def _inputs() -> str:
    """Return a digest of all that goes into a build but the source package."""
    tools = [
        run(["gcc", "--version"]).splitlines()[0],
        run(["dpkg-query", "--show", "--showformat=${binary:Package} ${Version}\n", "libc6-dev", "zlib1g-dev"]),
    ]
    parts = [platform.machine(), *tools, *OPTIONS, *TRAINED, *MODULES, TRAINING.read_text(encoding="utf-8")]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _newest() -> str:
    with tempfile.TemporaryDirectory(prefix=".apt-", dir=cache()) as place:
        shown = _apt(Path(place))("apt-cache", "showsrc", "--only-source", SOURCE)
    return max(re.findall(r"^Version: (.+)$", shown, re.MULTILINE), default="")


def _apt(place: Path) -> Apt:
    apt = Apt(place, SUITE, kind="deb-src")
    apt("apt-get", "update")
    return apt


def _build() -> Interpreter:
    for left in cache().glob(".work-*"):
        shutil.rmtree(left)
    if shutil.disk_usage(cache()).free < DISK:
        raise BuildError(f"{cache()}: building CPython takes {DISK >> 30} GB of disk, and there is less")
    _say("building a static one from Debian's source package, once: about 5 minutes on two idle cores")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=".work-", dir=cache()) as name:
        work = Path(name)
        _apt(work)("apt-get", "source", "--download-only", SOURCE, cwd=work)
        (description,) = work.glob("*.dsc")
        run(["dpkg-source", "--no-check", "-x", description.name, "source"], work)  # apt has checked the signature
        wanted = re.search(r"^Version: (.+)$", description.read_text(encoding="utf-8"), re.MULTILINE)
        _compile(work)
        kept = _keep(work, wanted[1] if wanted else "")
    _say(f"built in {time.monotonic() - began:.0f} s")
    return kept


def _compile(work: Path) -> None:
    tree = work / "source"
    stdlib = (tree / "Modules" / "Setup.stdlib.in").read_text(encoding="utf-8")
    unwanted = {*re.findall(r"^@MODULE_\w+_TRUE@#?(\w+)", stdlib, re.MULTILINE)} - {*MODULES}
    shutil.copy(TRAINING, tree)
    settings = {"SOURCE_DATE_EPOCH": "0", "PYTHONHASHSEED": "0", "CFLAGS": f"-ffile-prefix-map={tree}=."}
    configure = ["./configure", "-q", *OPTIONS, *TRAINED, *(f"py_cv_module_{name}=n/a" for name in sorted(unwanted))]
    # Without random addresses (setarch), for the profile
    make = ["setarch", "--addr-no-randomize", "nice", "make", f"-j{os.cpu_count()}", "profile-opt"]
    with (cache() / "make.log").open("w", encoding="utf-8") as log:
        for command in (configure, make):
            done = subprocess.run(
                command, cwd=tree, env={**os.environ, **settings}, stdout=log, stderr=log, check=False
            )
            if done.returncode != 0:
                raise BuildError(f"CPython cannot be built: {command[0]} failed, see {log.name}")


def _keep(work: Path, version: str) -> Interpreter:
    """Move what is used later into place: the interpreter, the archives, headers, the library in Python, licences."""
    tree, result = work / "source", work / "result"
    result.mkdir()
    for name in ("python", "libpython3.13.a", "Modules/_hacl/libHacl_Hash_SHA2.a", "pyconfig.h", "LICENSE"):
        shutil.copy(tree / name, result)
    shutil.copytree(tree / "Include", result / "Include")
    shutil.copytree(tree / "Lib", result / LIBRARY, ignore=shutil.ignore_patterns("test", "__pycache__", "idlelib"))
    (result / LIBRARY / "lib-dynload").mkdir()  # the interpreter looks for it
    manifest = {"inputs": _inputs(), "version": version}
    (result / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    name = hashlib.sha256(json.dumps(manifest).encode()).hexdigest()[:16]
    target = cache() / name
    shutil.rmtree(target, ignore_errors=True)
    return Interpreter(result.rename(target))


def _say(line: str) -> None:
    print(f"cpython: {line}", file=sys.stderr, flush=True)
