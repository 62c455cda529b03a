# SPDX-License-Identifier: Apache-2.0
"""A static CPython, built once from Debian's source package and kept outside of the checkout.

What the build depends on makes the name of its directory in the cache: the options and the training
below, and the compiler. One that was built from the same things is used whatever version of the
source package it is; `--release` asks Debian for its newest, with the fixes of its security team.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from fetch import provision
from fetch.apt import Apt, CannotFetch, run
from pyz import BuildError

HERE = Path(__file__).resolve().parent
TRAINING = HERE / "training.py"
SOURCE, SUITE = "python3.13", "trixie"
NEEDED = ("gcc", "libc6-dev", "zlib1g-dev", "make", "dpkg-dev", "xz-utils")
# Modules in C that are built in, beside those that every CPython has. The core needs _json,
# _socket, fcntl and select.
MODULES = (
    "array",
    "binascii",
    "fcntl",
    "math",
    "select",
    "termios",
    "zlib",
    "_bisect",
    "_blake2",
    "_csv",
    "_datetime",
    "_heapq",
    "_json",
    "_md5",
    "_opcode",
    "_posixsubprocess",
    "_random",
    "_sha1",
    "_sha2",
    "_sha3",
    "_socket",
    "_struct",
    "resource",
)
# What configure does not find, of all that only `posix` uses: of each function and constant that it
# has, a start makes an object, 150 of `sysconf` alone. Of the modules here only shutil and
# subprocess use some, if they are there.
WITHOUT = {
    "func": (
        "chroot",
        "confstr",
        "copy_file_range",
        "ctermid",
        "eventfd",
        "fchdir",
        "fchown",
        "fdatasync",
        "fpathconf",
        "getgrouplist",
        "getgroups",
        "getloadavg",
        "getlogin",
        "getpgid",
        "getpgrp",
        "getpriority",
        "getresgid",
        "getresuid",
        "getsid",
        "grantpt",
        "initgroups",
        "lockf",
        "memfd_create",
        "mkfifo",
        "mknod",
        "nice",
        "pathconf",
        "posix_fadvise",
        "posix_fallocate",
        "posix_openpt",
        "posix_spawnp",
        "preadv",
        "preadv2",
        "ptsname",
        "ptsname_r",
        "pwrite",
        "pwritev",
        "pwritev2",
        "readv",
        "sched_rr_get_interval",
        "sched_setaffinity",
        "sched_setparam",
        "sched_setscheduler",
        "setegid",
        "seteuid",
        "setns",
        "setpriority",
        "setresgid",
        "setresuid",
        "splice",
        "sync",
        "sysconf",
        "system",
        "tcgetpgrp",
        "tcsetpgrp",
        "timerfd_create",
        "times",
        "truncate",
        "ttyname_r",
        "unlockpt",
        "unshare",
        "wait3",
        "wait4",
        "writev",
    ),
    "header": (
        "linux_memfd_h",
        "sys_eventfd_h",
        "sys_pidfd_h",
        "sys_timerfd_h",
        "sys_xattr_h",
        "sysexits_h",
    ),
}
# Of the constants of `fcntl` and `posix` only these stay, which the program or a module uses.
CONSTANTS = (
    "CLD_EXITED",
    "CLD_STOPPED",
    "F_OK",
    "F_RDLCK",
    "F_SETLEASE",
    "F_SETPIPE_SZ",
    "F_UNLCK",
    "LOCK_EX",
    "LOCK_NB",
    "O_APPEND",
    "O_CLOEXEC",
    "O_CREAT",
    "O_DIRECTORY",
    "O_EXCL",
    "O_NOCTTY",
    "O_NOFOLLOW",
    "O_NONBLOCK",
    "O_RDONLY",
    "O_RDWR",
    "O_TMPFILE",
    "O_TRUNC",
    "O_WRONLY",
    "POSIX_SPAWN_CLOSE",
    "POSIX_SPAWN_CLOSEFROM",
    "POSIX_SPAWN_DUP2",
    "P_PID",
    "ST_NOEXEC",
    "ST_RDONLY",
    "TMP_MAX",
    "WEXITED",
    "WNOHANG",
    "WNOWAIT",
    "WSTOPPED",
    "W_OK",
    "X_OK",
)
OTHERS = rf"if \(PyModule_AddInt\w+\(m, (?!\W?({'|'.join(CONSTANTS)})\b).*\)\) return -1;"
WITH_CONSTANTS = ("Modules/fcntlmodule.c", "Modules/posixmodule.c")
# Each start would make a set of the names of all standard modules,
# which only hints in a traceback use.
NAMES = "Python/stdlib_module_names.h"
NO_NAMES = 'static const char *_Py_stdlib_module_names[] = {"sys"};\n'
OPTIONS = (
    "--disable-shared",
    "--disable-test-modules",
    "--without-ensurepip",
    "--without-doc-strings",
    "--without-mimalloc",  # before main() it reads MIMALLOC_* of the environment, and a file
    "--without-readline",
    "MODULE_BUILDTYPE=static",
    "LDFLAGS=-static",
    "LINKFORSHARED= ",
    "OPT=-DNDEBUG -O3 -fPIE",
    *(f"ac_cv_{kind}_{name}=no" for kind, names in WITHOUT.items() for name in names),
)
# Profile-guided: a hook takes a tenth less. The same run gives the same profile, and so the same
# bytes: in a directory of one name, with this environment, and without random addresses (setarch).
TRAINED = ("--enable-optimizations", f"PROFILE_TASK=-S {TRAINING.name}")
MAKE = 'setarch --addr-no-randomize nice make -j"$(nproc)"'
# And optimized as a whole, once: a hook takes another fourteenth less. `--with-lto` would do that
# for each program that the build links (six times two minutes), and for each ELF file. So the
# compiler leaves both kinds of code, the programs are linked of the usual one, and at the end the
# other becomes a single object.
PROFILE = "-fprofile-use -fprofile-correction"
LINKING = 'LDFLAGS="-no-pie -fno-lto"'
# Modules/getpath.c looks for an installation of Python along PATH and around the working directory:
# launcher.c has its function instead.
LEAVE_OUT = "ar d libpython3.13.a getpath.o"
LEARN = (
    f"{MAKE} {LINKING} profile-gen-stamp",
    "find . -name '*.gcda' -delete",  # what the build's own runs have left differs each time
    f'{MAKE} {LINKING} profile-opt PGO_PROF_USE_FLAG="{PROFILE} -flto -ffat-lto-objects"',
    LEAVE_OUT,
    f"nice gcc -r -nostdlib -O3 -fPIE -flto=auto -flinker-output=nolto-rel {PROFILE} "
    "-Wno-missing-profile"
    " -Wl,--whole-archive libpython3.13.a -o whole.o",
    "rm libpython3.13.a && ar rcs libpython3.13.a whole.o",
)
PLACE = Path("/tmp/resctrl-mon-hook-cpython")  # noqa: S108  made with mkdir, which fails if it is there
ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "LC_ALL": "C",
    "PYTHONHASHSEED": "0",
    "SOURCE_DATE_EPOCH": "0",
}
# For another machine: Debian's cross compiler, no profile,
# and answers to what configure can ask only on that machine
CROSS_OPTIONS = ("ac_cv_file__dev_ptmx=yes", "ac_cv_file__dev_ptc=no", "ac_cv_buggy_getaddrinfo=no")
CROSS_ARCHIVES = ("libpython3.13.a", "Modules/_hacl/libHacl_Hash_SHA2.a")
SOURCE_LINE = "${source:Package} ${source:Version}\n"
DISK = 2 << 30
LIBRARY = "lib/python3.13"  # where the interpreter finds it
LIBRARIES = "libraries.txt"  # the source packages of another machine's glibc and zlib


class Machine(NamedTuple):
    """A kind of machine, as `uname -m` names it.

    `triplet`: of its compiler, if that is not the usual one here.
    """

    name: str
    debian: str
    triplet: str = ""

    @property
    def compiler(self) -> str:
        return f"{self.triplet}-gcc" if self.triplet else "gcc"

    @property
    def packages(self) -> tuple[str, ...]:
        """What has to be installed here to build for it."""
        cross = (f"gcc-{self.triplet}", f"libc6-dev-{self.debian}-cross") if self.triplet else ()
        return (*NEEDED, *cross)


HERE_MACHINE = Machine(
    platform.machine(), {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), "")
)
MACHINES = {
    "aarch64": Machine("aarch64", "arm64", "aarch64-linux-gnu"),
    HERE_MACHINE.name: HERE_MACHINE,
}


class Interpreter(NamedTuple):
    """A CPython in the cache. Only one for this machine has `python`."""

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
        found: str = json.loads((self.directory / "manifest.json").read_text(encoding="utf-8"))[
            "version"
        ]
        return found

    @property
    def libraries(self) -> str:
        """The source packages of glibc and zlib, each with its version, a line each."""
        if (self.directory / LIBRARIES).exists():
            return (self.directory / LIBRARIES).read_text(encoding="utf-8")
        return run(
            ["dpkg-query", "--show", f"--showformat={SOURCE_LINE}", "libc6-dev", "zlib1g-dev"]
        )


def ready(machine: Machine = HERE_MACHINE, *, newest: bool = False) -> Interpreter:
    """Return the CPython; built if there is none yet,
    or with `newest` if Debian's source package is a newer one.
    """
    if machine.triplet:
        ready(newest=newest)  # it compiles the other's modules
    if absent := provision.install(machine.packages):
        raise BuildError("; ".join(absent))
    cache().mkdir(parents=True, exist_ok=True)
    try:
        # Two at once: the second takes what the first has made.
        with provision.alone(cache() / "lock"):
            found = find(machine)
            if found is None or (newest and found.version != _newest()):
                found = _build(machine)
            return found
    except CannotFetch as error:
        raise BuildError(f"no source of CPython: {error}") from error


def find(machine: Machine = HERE_MACHINE) -> Interpreter | None:
    """Return the CPython that was built last from what is here now;
    None if there is none, or no compiler.
    """
    try:
        name = _inputs(machine)
    except (OSError, CannotFetch):
        return None
    found = [
        path
        for path in cache().glob("*/manifest.json")
        if json.loads(path.read_text())["inputs"] == name
    ]
    newest = max(found, key=lambda path: path.stat().st_mtime, default=None)
    return Interpreter(newest.parent) if newest else None


def cache() -> Path:
    return provision.cache("cpython")


def _inputs(machine: Machine) -> str:
    """Return a digest of all that goes into a build but the source package."""
    libraries = [name for name in machine.packages if name.startswith(("libc6", "zlib1g"))]
    tools = [
        run([machine.compiler, "--version"]).splitlines()[0],
        run(["dpkg-query", "--show", "--showformat=${binary:Package} ${Version}\n", *libraries]),
    ]
    options = (*CROSS_OPTIONS, LEAVE_OUT) if machine.triplet else (*TRAINED, *LEARN)
    training = LIBRARIES if machine.triplet else TRAINING.read_text(encoding="utf-8")
    parts = [machine.name, *tools, *OPTIONS, *options, *MODULES, NO_NAMES, OTHERS, training]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _newest() -> str:
    with tempfile.TemporaryDirectory(prefix=".apt-", dir=cache()) as place:
        shown = _apt(Path(place))("apt-cache", "showsrc", "--only-source", SOURCE)
    return max(re.findall(r"^Version: (.+)$", shown, re.MULTILINE), default="")


def _apt(place: Path) -> Apt:
    apt = Apt(place, SUITE, kind="deb-src")
    apt("apt-get", "update")
    return apt


def _build(machine: Machine) -> Interpreter:
    if shutil.disk_usage(PLACE.parent).free < DISK:
        raise BuildError(
            f"{PLACE.parent}: building CPython takes {DISK >> 30} GB of disk, and there is less"
        )
    _say(
        f"building a static one for {machine.name} from Debian's source package, once: 8 minutes "
        "on two idle cores"
    )
    began = time.monotonic()
    with _new_directory(PLACE) as work:
        _apt(work)("apt-get", "source", "--download-only", SOURCE, cwd=work)
        (description,) = work.glob("*.dsc")
        # Apt has checked the signature.
        run(["dpkg-source", "--no-check", "-x", description.name, "source"], work)
        wanted = re.search(
            r"^Version: (.+)$", description.read_text(encoding="utf-8"), re.MULTILINE
        )
        _compile(work, machine)
        kept = _keep(work, machine, wanted[1] if wanted else "")
    _say(f"built in {time.monotonic() - began:.0f} s")
    return kept


@contextmanager
def _new_directory(path: Path) -> Iterator[Path]:
    """Make a directory that was not there, and remove it at the end."""
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        raise BuildError(f"{path} exists: if no build is running, remove it") from None
    try:
        yield path
    finally:
        shutil.rmtree(path)


def _compile(work: Path, machine: Machine) -> None:
    tree = work / "source"
    stdlib = (tree / "Modules" / "Setup.stdlib.in").read_text(encoding="utf-8")
    unwanted = {*re.findall(r"^@MODULE_\w+_TRUE@#?(\w+)", stdlib, re.MULTILINE)} - {*MODULES}
    shutil.copy(TRAINING, tree)
    (tree / NAMES).write_text(NO_NAMES, encoding="utf-8")
    for name in WITH_CONSTANTS:
        text = (tree / name).read_text(encoding="utf-8")
        (tree / name).write_text(re.sub(OTHERS, ";", text), encoding="utf-8")
    options = [*OPTIONS, *(f"py_cv_module_{name}=n/a" for name in sorted(unwanted))]
    if machine.triplet:
        options += [*CROSS_OPTIONS, *_cross(work, machine)]
    else:
        options += TRAINED
    make = (
        [f"{MAKE} {' '.join(CROSS_ARCHIVES)}", f"{machine.triplet}-{LEAVE_OUT}"]
        if machine.triplet
        else LEARN
    )
    commands = [["./configure", "-q", *options], *(["sh", "-c", command] for command in make)]
    with (cache() / "make.log").open("w", encoding="utf-8") as log:
        for command in commands:
            done = subprocess.run(
                command, cwd=tree, env=ENVIRONMENT, stdout=log, stderr=log, check=False
            )
            if done.returncode != 0:
                raise BuildError(f"CPython cannot be built: {command[-1]} failed, see {log.name}")


def _cross(work: Path, machine: Machine) -> list[str]:
    """Return the options of configure for another machine. Its zlib is unpacked for them."""
    apt = Apt(work / machine.name, SUITE, architecture=machine.debian)
    apt("apt-get", "update")
    apt("apt-get", "download", "zlib1g-dev", cwd=work)
    (package,) = work.glob("zlib1g-dev*.deb")
    run(["dpkg-deb", "-x", package.name, "zlib"], work)
    native = find()
    if native is None:
        raise BuildError("no CPython for this machine, which compiles the modules")
    return [
        f"--host={machine.triplet}",
        f"--build={platform.machine()}-linux-gnu",
        f"CC={machine.compiler}",
        f"--with-build-python={native.python}",
        f"CPPFLAGS=-I{work}/zlib/usr/include",
        f"LDFLAGS=-static -L{work}/zlib/usr/lib/{machine.triplet}",
    ]


def _keep(work: Path, machine: Machine, version: str) -> Interpreter:
    """Move what is used later into place: the interpreter, the archives, headers,
    the library in Python, licences.
    """
    tree, result = work / "source", work / "result"
    result.mkdir()
    for name in (
        *CROSS_ARCHIVES,
        "pyconfig.h",
        "LICENSE",
        *([] if machine.triplet else ["python"]),
    ):
        shutil.copy(tree / name, result)
    if machine.triplet:
        shutil.copy(work / "zlib/usr/lib" / machine.triplet / "libz.a", result)
        (package,) = work.glob("zlib1g-dev*.deb")
        zlib = run(["dpkg-deb", "--show", f"--showformat={SOURCE_LINE}", package.name], work)
        used = run(
            [
                "dpkg-query",
                "--show",
                "--showformat=${Built-Using}",
                f"libc6-dev-{machine.debian}-cross",
            ]
        )
        glibc = re.search(r"\bglibc \(= (.+?)\)", used)
        (result / LIBRARIES).write_text(
            f"glibc {glibc[1] if glibc else 'of ' + used}\n{zlib}", encoding="utf-8"
        )
    shutil.copytree(tree / "Include", result / "Include")
    shutil.copytree(
        tree / "Lib",
        result / LIBRARY,
        ignore=shutil.ignore_patterns("test", "__pycache__", "idlelib"),
    )
    (result / LIBRARY / "lib-dynload").mkdir()  # the interpreter looks for it
    manifest = {"inputs": _inputs(machine), "version": version}
    (result / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    name = hashlib.sha256(json.dumps(manifest).encode()).hexdigest()[:16]
    target = cache() / name
    shutil.rmtree(target, ignore_errors=True)
    # In the cache's file system.
    with tempfile.TemporaryDirectory(prefix=".new-", dir=cache()) as new:
        shutil.move(result, Path(new) / name)
        (Path(new) / name).rename(target)
    return Interpreter(target)


def _say(line: str) -> None:
    print(f"cpython: {line}", file=sys.stderr, flush=True)
