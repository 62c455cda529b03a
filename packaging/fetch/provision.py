# SPDX-License-Identifier: Apache-2.0
"""Makes ready what the development commands need: a .venv with the pinned tools,
and Debian packages.

Only the venv is indispensable: without it ensure() raises CannotProvision. A package that cannot be
installed is named in one line; who needs it skips, or fails in CI. Standard library only: this runs
before anything is installed.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# What the newest of the pinned tools asks for (the .pyz itself runs from 3.9 on).
TOOLS_PYTHON = (3, 11)

# What each purpose takes, by Debian's names. --no-install-recommends is enough: see the comments.
DEMO = (
    "busybox-static",  # the containers' root file system
    "fuse3",  # the resctrl double is a FUSE file system
    # Brings conmon, a network stack and containers-common; a rootful `--network none` needs no
    # more.
    "podman",
    "runc",
)
# All others of the demo's have one name on Debian, Fedora and openSUSE.
FEDORA = {"busybox-static": "busybox"}
DEMO_TOOLS = ("mfusepy", "pyfakefs")  # of the dependency group `dev`
FAULTS = (
    "fuse3",
    "strace",  # lets system calls fail
)
TEST = (
    *DEMO,
    *FAULTS,
    "catatonit",  # the infra container of a Podman pod
    "containerd",  # speaks the CRI; brings its shim and ctr
    "crun",  # the other runtime, whose states differ
    # Compile what the tests start: tests/support/tenant.c, tests/bench/load.c.
    *("gcc", "libc6-dev"),
    "jq",  # an example of the documents
    "ignition",  # what RHEL CoreOS reads a MachineConfig by
    *("fish", "zsh"),  # read the scripts that complete command lines: 37 MB
    # Brings promtool; where systemd runs, it starts a server, which the tests do not use.
    "prometheus",
)
JOBS = (
    "fuse3",
    *("at", "cron", "parallel"),
    *("gcc", "libc6-dev", "libslurm-dev"),  # compile the plugin
    # Where systemd runs, they start munge's server, which the tests do not use.
    *("munge", "slurm-wlm"),
)
FLEET = (
    # Where systemd runs, they start servers, which the tests do not use.
    *("rsyslog", "rsyslog-relp"),
    *("prometheus", "victoria-metrics"),
    "fuse3",
)
GUEST = (
    "qemu-system-x86",  # runs it
    *("dbus", "systemd"),  # PID 1 of one guest, and what runtimes ask it by
)
KERNEL = (
    *GUEST,
    *("bc", "bison", "flex", "gcc", "libc6-dev", "libelf-dev", "make", "patch", "xz-utils"),
)

PACKAGE = ("dpkg", "rpm")  # make the packages
CHECK = ("lintian", "rpmlint")
PACKAGES = (
    *PACKAGE,
    *CHECK,
    "busybox-static",  # the containers' root file system; Podman and runc are that Debian's
    "cpio",
    "fuse3",
    "mandoc",
    "mmdebstrap",  # a fresh Debian to install them in
    "strace",  # tells in which order files are put in place
)

# How to see that a package is there without asking a package manager, so that this holds on every
# distribution: any of these commands (by default the one that is named like the package), or the
# file of which the glob finds one.
_PROBES = {
    "at": "atd",
    "busybox-static": "busybox-static busybox",  # openSUSE's, and that of all others
    "catatonit": "/usr/*/podman/catatonit",
    "dbus": "dbus-daemon",
    "dpkg": "dpkg-deb",
    "dpkg-dev": "dpkg-source",
    "fuse3": "fusermount3",
    "gcc-aarch64-linux-gnu": "aarch64-linux-gnu-gcc",
    "ignition": "ignition-validate",
    "libc6-dev": "/usr/include/stdio.h",
    "libc6-dev-arm64-cross": "/usr/aarch64-linux-gnu/include/stdio.h",
    "libelf-dev": "/usr/include/libelf.h",
    "libslurm-dev": "/usr/include/slurm/spank.h",
    "munge": "munged",
    "qemu-system-x86": "qemu-system-x86_64",
    "rpm": "rpmbuild",
    "rsyslog": "rsyslogd",
    "rsyslog-relp": "/usr/lib/*/rsyslog/omrelp.so",
    "slurm-wlm": "slurmctld",
    "systemd": "/lib/systemd/systemd",
    "xz-utils": "xz",
    "zlib1g-dev": "/usr/include/zlib.h",
}
_MEMORY = "/dev/shm"  # noqa: S108  of names that tempfile makes
_ROOM = 4 << 30
_NEED_ROOT = frozenset({"catatonit", "containerd", "crun", "podman", "runc"})


class CannotProvision(Exception):
    """The development tools cannot be made ready; the message is one line that says what to do."""


def ensure(apt: Iterable[str] = ()) -> Path:
    """The python of a .venv that has the pinned tools;
    the named Debian packages are installed if that can be done.
    """
    if reasons := install(apt):
        _say("; ".join(reasons))
    return _venv(ROOT / ".venv", _pins())


def demo() -> Path:
    """A python that has what the demo takes: this one, or that of the other commands,
    or one of a venv of its own.
    """
    if reasons := install(DEMO):
        _say("; ".join(reasons))
    tools = _pins()
    pins = [pin for pin in tools if pin.partition("==")[0] in DEMO_TOOLS]
    if all(map(_is_importable, pins)):
        return Path(sys.executable)
    return (
        _venv(ROOT / ".venv", tools)
        if _is_current(ROOT / ".venv", tools)
        else _venv(ROOT / ".venv-demo", pins)
    )


def clickhouse() -> Path:
    """The python of a venv, in the cache, that has ClickHouse as a library."""
    directory = cache("clickhouse")
    directory.mkdir(parents=True, exist_ok=True)
    return _venv(directory / "venv", _pins("clickhouse"))


def cache(*names: str, environment: Mapping[str, str] = os.environ) -> Path:
    """A directory outside of the checkout for what is kept from one run to the next;
    it need not be there yet.
    """
    base = environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME", "/root"), ".cache")
    return Path(base, "resctrl-mon-hook", *names)


def find_scratch() -> str:
    """Where temporary files go: into memory where there is room and programs can run,
    as /run is on a node.

    On a disk the tests would wait for it most of the time.
    """
    try:
        memory = os.statvfs(_MEMORY)
    except OSError:
        return tempfile.gettempdir()
    has_room = memory.f_bavail * memory.f_frsize >= _ROOM and os.access(_MEMORY, os.W_OK)
    return _MEMORY if has_room and not memory.f_flag & os.ST_NOEXEC else tempfile.gettempdir()


def install(apt: Iterable[str]) -> list[str]:
    """Installs these packages, saying so first; why they cannot be used all the same,
    if so: a sentence each.
    """
    wanted = tuple(apt)
    fault = _install_packages([name for name in wanted if not _present(name)])
    reasons = missing(wanted)
    return [*reasons, fault] if reasons and fault else reasons


def missing(apt: Iterable[str]) -> list[str]:
    """Why these packages could not be used here, if so: a sentence each,
    fit for a skip's reason.
    """
    wanted = tuple(apt)
    absent = [name for name in wanted if not _present(name)]
    reasons = [f"not installed: {' '.join(absent)}"] if absent else []
    if "fuse3" in wanted and (fault := _cannot_open("/dev/fuse")):
        reasons.append(f"/dev/fuse: {fault} (modprobe fuse, or give the container that device)")
    if os.geteuid() != 0 and (rootful := [name for name in wanted if name in _NEED_ROOT]):
        reasons.append(
            f"not root: {' '.join(rootful)} cannot start containers that a hook would see"
        )
    return reasons


def _say(message: str) -> None:
    print(f"provision: {message}", file=sys.stderr, flush=True)


# --- Debian packages


def _present(name: str) -> bool:
    probe = _PROBES.get(name, name)
    if probe.startswith("/"):
        return any(Path("/").glob(probe[1:]))
    # Non-root users often have no sbin in PATH, and runc lies there.
    places = os.environ.get("PATH", os.defpath) + ":/usr/local/sbin:/usr/sbin:/sbin"
    programs = filter(None, (shutil.which(command, path=places) for command in probe.split()))
    return any(name != "busybox-static" or _is_static(program) for program in programs)


def _is_static(program: str) -> bool:
    """No ELF interpreter, whose path is near the start of a dynamic program:
    it runs in an empty root.
    """
    with open(program, "rb") as file:
        return b"/ld-" not in file.read(4096)


def _cannot_open(device: str) -> str:
    try:
        os.close(os.open(device, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _install_packages(names: Sequence[str]) -> str:
    """By apt, if this is a Debian and we are root; otherwise the answer is what a person has to do.

    Removes nothing.
    """
    if not names:
        return ""
    if shutil.which("apt-get") is None and {*names} <= {*DEMO}:
        fedora = " ".join(FEDORA.get(name, name) for name in names)
        return f"on Fedora: `dnf install {fedora}`; on openSUSE: `zypper install {' '.join(names)}`"
    if shutil.which("apt-get") is None:
        return "this is no Debian: install by hand what Debian calls so"
    if os.geteuid() != 0:
        return f"as root: apt-get install --no-install-recommends {' '.join(names)}"
    _say(f"installing Debian packages: {' '.join(names)}")
    error = _apt_install(names)
    return f"apt-get could not install (offline?): {error}" if error else ""


def _apt_install(names: Sequence[str]) -> str:
    """Empty, or apt's own word on why not.

    The package lists are refreshed only if it fails with those it has.
    """
    command = ["install", "--yes", "--no-install-recommends", "--no-remove", *names]
    return _apt_get(command) and (_apt_get(["update"]) or _apt_get(command))


def _apt_get(arguments: Sequence[str]) -> str:
    # Another apt (a second run of ours, say) may hold dpkg's lock: wait for it.
    command = [
        "apt-get",
        "-q",
        "-o",
        "DPkg::Lock::Timeout=300",
        "-o",
        "APT::Update::Error-Mode=any",
        *arguments,
    ]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    return _run(command, environment)


def _run(command: Sequence[str], environment: dict[str, str] | None = None) -> str:
    """Empty on success, else the first error in the output: the ones after it follow from it."""
    done = subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode == 0:
        return ""
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"E:|ERROR|error", line)]
    return (errors or lines[-1:] or [f"exit status {done.returncode}"])[0]


# --- the venv


def requirements(pyproject: str, group: str = "dev") -> list[str]:
    """The pinned tools of a group.

    By a regular expression, since this starts without tomllib; a test compares.
    """
    lines = re.search(rf"^{group} = \[\n(.*?)^\]", pyproject, re.MULTILINE | re.DOTALL)
    if lines is None:
        raise CannotProvision(f"pyproject.toml has no dependency group `{group}`")
    return re.findall(r'^\s*"([^"]+)"', lines[1], re.MULTILINE)


def _pins(group: str = "dev") -> list[str]:
    return requirements((ROOT / "pyproject.toml").read_text(encoding="utf-8"), group)


def _is_importable(pin: str) -> bool:
    """Whether this python has a tool in the version that is asked for."""
    name, _, version = pin.partition("==")
    try:
        return importlib.metadata.version(name) == version
    except importlib.metadata.PackageNotFoundError:
        return False


def _venv(directory: Path, pins: Sequence[str]) -> Path:
    """The venv's python; made, or made again,
    unless its stamp says that it is whole and still what is asked for.
    """
    if not _is_current(directory, pins):
        with alone(directory.with_name(directory.name + ".lock")):
            if not _is_current(directory, pins):  # another process may have made it
                _make_venv(directory, pins)
    return directory / "bin" / "python"


def _stamp(directory: Path, pins: Sequence[str]) -> str:
    """What the venv depends on: the tools, where it lies (scripts name it),
    and the interpreter behind its links.
    """
    parts = [*pins, str(directory), os.path.realpath(directory / "bin" / "python")]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _is_current(directory: Path, pins: Sequence[str]) -> bool:
    try:
        stamp = (directory / "stamp").read_text(encoding="ascii")
    except OSError:
        return False
    return stamp == _stamp(directory, pins) and os.access(directory / "bin" / "python", os.X_OK)


@contextmanager
def alone(lock: Path) -> Iterator[None]:
    """Holds the lock file; it goes with the process, however that ends."""
    with open(lock, "w", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make_venv(directory: Path, pins: Sequence[str]) -> None:
    """Remakes the venv from nothing. The stamp is written last: without one it is half-made."""
    base = _base_python()
    _say(f"making {directory.name} with the pinned tools: {' '.join(pins)}")
    shutil.rmtree(directory, ignore_errors=True)
    if error := _run([base, "-m", "venv", str(directory)]):
        raise CannotProvision(f"{base} -m venv failed: {error}")
    pip = [
        str(directory / "bin" / "python"),
        "-m",
        "pip",
        "--disable-pip-version-check",
        "--quiet",
        "install",
    ]
    if error := _run([*pip, *pins]):
        raise CannotProvision(f"pip could not install the development tools (offline?): {error}")
    (directory / "stamp").write_text(_stamp(directory, pins), encoding="ascii")


def _base_python() -> str:
    """The interpreter to make the venv with: this one if it is new enough,
    else the newest that the machine has.
    """
    if sys.version_info >= TOOLS_PYTHON:
        without_pip = importlib.util.find_spec("ensurepip") is None  # Debian ships it apart
        if without_pip and (fault := _install_packages(["python3-venv"])):
            raise CannotProvision(f"python3-venv is not installed; {fault}")
        return sys.executable
    from fetch import interpreters  # noqa: PLC0415  only old machines need the search

    newer = [python for python in interpreters.find() if python.version >= TOOLS_PYTHON]
    if not newer:
        wanted, have = (
            ".".join(map(str, version[:2])) for version in (TOOLS_PYTHON, sys.version_info)
        )
        raise CannotProvision(
            f"the development tools need Python {wanted} or newer, and this is {have}"
        )
    return str(newer[-1].path)
