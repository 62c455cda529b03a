"""The machine itself, for install and doctor: its init, its interpreters, what runs containers, what forbids to run."""

from __future__ import annotations

import errno
import os
import subprocess
from dataclasses import dataclass

from hook.base import procfs
from hook.base.explain import errno_name

OLDEST = (3, 9)
"""The first CPython that the program runs on."""
KUBERNETES, PODMAN = "kubernetes", "podman"
TARGETS = (KUBERNETES, PODMAN)
"""What the hook can be installed for: those that hand containers of pods to a runtime, and Podman."""
RUNTIMES = {"crio": KUBERNETES, "containerd": KUBERNETES, "k3s": KUBERNETES, "rke2": KUBERNETES, "podman": PODMAN}
"""The programs that start containers, and which of the targets each is."""

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PATIENCE = 60.0
_LONGEST_REMARK = 300
_MOST_LINKS = 40  # as the kernel has it
_TELLS_ITS_VERSION = (
    "import sys,importlib.util as u;"
    "print(*sys.version_info[:2],sys.implementation.cache_tag,int.from_bytes(u.MAGIC_NUMBER,'little'))"
)
# What SELinux calls files that are nobody's program: a runtime may be kept from starting one of these, root is not.
_NO_PROGRAMS = ("admin_home_t", "data_home_t", "default_t", "tmp_t", "unlabeled_t", "user_home_t", "user_tmp_t")


@dataclass(frozen=True)
class Ended:
    """What became of a program. `status`: None if it could not be started, or did not end; `error` says why."""

    status: int | None
    output: str
    error: str

    @property
    def problem(self) -> str | None:
        """What went wrong, in a line; None: nothing."""
        if self.status == 0:
            return None
        said = (self.error.strip() or "it does not say why").splitlines()[-1][:_LONGEST_REMARK]
        return said if self.status is None else f"exit status {self.status}: {said}"


def run(command: list[str], stdin: str = "", seconds: float = _PATIENCE) -> Ended:
    """Run a program to its end, in the environment that a service has."""
    try:
        done = subprocess.run(
            command,
            input=stdin.encode(),
            capture_output=True,
            timeout=seconds,
            check=False,
            cwd="/",
            env={"PATH": _PATH, "LC_ALL": "C"},
        )
    except OSError as error:
        return Ended(None, "", f"{error.strerror}: {errno_name(error)}")
    except subprocess.TimeoutExpired:
        return Ended(None, "", f"it has not ended after {seconds:.0f} s")
    return Ended(done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace"))


def program(name: str, top: str = "") -> str | None:
    """Where a program lies, as seen below `top`; None: nowhere."""
    paths = (f"{directory}/{name}" for directory in _PATH.split(":"))
    return next((path for path in paths if os.access(top + path, os.X_OK) and os.path.isfile(top + path)), None)


def targets(top: str = "") -> list[str]:
    """The targets that there is something to start containers for."""
    found = [target for name, target in RUNTIMES.items() if program(name, top)]
    return [target for target in TARGETS if target in found]


def has_systemd() -> bool:
    """Whether systemd is the init that runs: sd_booted(3)."""
    return os.path.isdir("/run/systemd/system")


def has_transient(unit: str) -> bool:
    """Whether systemd-run has made this unit, which lasts until the next boot."""
    return os.path.exists(f"/run/systemd/transient/{unit}")


def processes() -> dict[int, list[str]]:
    """The command line of each process, by its words, and never empty."""
    found = {}
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", encoding="utf-8", errors="surrogateescape") as file:
                words = file.read().split("\0")[:-1]
        except OSError:  # no process, or not any more
            continue
        if words:
            found[int(name)] = words
    return found


def commands() -> list[list[str]]:
    """The command line of each process, by its words."""
    return list(processes().values())


def environment(pid: int) -> list[str]:
    """The variables that a process was started with; none if they cannot be read."""
    try:
        with open(f"/proc/{pid}/environ", encoding="utf-8", errors="surrogateescape") as file:
            return file.read().split("\0")
    except OSError:
        return []


def is_running(pid: int) -> bool:
    """Whether there still is such a process."""
    return os.path.isdir(f"/proc/{pid}")


def started_at(pid: int) -> float:
    """When a process was started, by the clock that files have their times by. Raises OSError."""
    born = procfs.starttime(pid)
    if born is None:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
    with open("/proc/stat", encoding="ascii") as file:
        booted = next(int(line.split()[1]) for line in file if line.startswith("btime "))
    return booted + born / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class View:
    """The files as a process sees them. `root`: its root directory, empty if that is ours; `cwd`: its current one."""

    root: str = ""
    cwd: str = "/"

    def at(self, path: str) -> str:
        """Where a path of the process lies for us. Links on the way lead where they lead for that process."""
        if not path.startswith("/"):
            return os.path.join(self.cwd, path)
        return _below(self.root, path) if self.root else path

    def is_same(self, path: str, own: str) -> bool:
        """Whether a path of the process is this file of ours."""
        try:
            return os.path.samefile(self.at(path), own)
        except OSError:
            return False


def view_of(pid: int) -> View:
    """How a process sees files. Raises OSError."""
    root, cwd = f"/proc/{pid}/root", f"/proc/{pid}/cwd"
    is_ours = os.path.samefile(root, "/") and os.path.samefile(f"/proc/{pid}/ns/mnt", "/proc/self/ns/mnt")
    return View("" if is_ours else root, cwd)


def _below(root: str, path: str) -> str:
    """Where a path lies whose absolute links count from a directory."""
    found, links = "", 0
    waiting = path.split("/")[::-1]
    while waiting:
        name = waiting.pop()
        if name == "..":
            found = found.rpartition("/")[0]
        elif name not in ("", "."):
            above, found = found, f"{found}/{name}"
            if links < _MOST_LINKS and os.path.islink(root + found):
                links += 1
                target = os.readlink(root + found)
                found = "" if target.startswith("/") else above
                waiting += target.split("/")[::-1]
    return root + found


def shows_processes() -> bool:
    """Whether /proc is mounted, and hides none from us."""
    return os.path.isdir("/proc/1")


def cgroup_version() -> str | None:
    """`v1`, `v2` or both; None: there are none."""
    with open("/proc/self/mounts", encoding="utf-8", errors="replace") as file:
        kinds = {line.split(" ")[2] for line in file}
    found = [version for kind, version in (("cgroup", "v1"), ("cgroup2", "v2")) if kind in kinds]
    return " and ".join(found) or None


# --- Interpreters


@dataclass(frozen=True)
class Interpreter:
    """A Python. `tag` names its bytecode (sys.implementation.cache_tag), which begins with `magic`."""

    path: str
    version: tuple[int, int]
    tag: str
    magic: bytes


def interpreter(path: str) -> Interpreter | str:
    """What Python that is, or why it is none."""
    ended = run([path, "-ISc", _TELLS_ITS_VERSION])
    try:
        major, minor, tag, magic = ended.output.split()
        return Interpreter(path, (int(major), int(minor)), tag, int(magic).to_bytes(4, "little"))
    except (ValueError, OverflowError):
        return f"{path} is no Python that runs here: {ended.problem or 'it does not tell its version'}"


# --- What forbids to run a program


def selinux() -> str | None:
    """`enforcing` or `permissive`; None: SELinux is not in force."""
    try:
        with open("/sys/fs/selinux/enforce", encoding="ascii") as file:
            return "enforcing" if file.read().strip() == "1" else "permissive"
    except OSError:
        return None


def label(path: str) -> str | None:
    """The SELinux type of a file; None: it has none."""
    try:
        context = os.getxattr(path, "security.selinux").decode("utf-8", "replace").rstrip("\0")
    except OSError:
        return None
    parts = context.split(":")
    return parts[2] if len(parts) > 2 else None


def is_noexec(path: str) -> bool:
    """Whether the file system of a file is mounted so that none of its programs can be started."""
    return bool(os.statvfs(path).f_flag & os.ST_NOEXEC)


def has_fapolicyd() -> bool:
    """Whether fapolicyd decides what may run."""
    return os.path.exists("/run/fapolicyd/fapolicyd.fifo") or os.path.exists("/run/fapolicyd.pid")


def why_forbidden(path: str) -> str:
    """What may keep a program from being run, each with its remedy; empty: nothing that is known."""
    reasons = []
    if is_noexec(path):
        reasons.append(f"the file system of {path} is mounted noexec: choose another --prefix")
    if selinux() == "enforcing":
        reasons.append(f"SELinux: {path} is {label(path)}: restorecon it, or see ausearch -m avc")
    if has_fapolicyd():
        reasons.append(f"fapolicyd: fapolicyd-cli --file add {path} && fapolicyd-cli --update")
    return "; ".join(reasons)


def mislabelled(path: str) -> str | None:
    """What is wrong with a program's SELinux label for whoever is not as free as root's shell; None: nothing."""
    found = label(path) if selinux() == "enforcing" else None
    if found not in _NO_PROGRAMS:
        return None
    remedy = f"semanage fcontext -a -t bin_t {path} && restorecon {path}"
    return f"SELinux: {path} is {found}, which runtimes may not start; remedy: {remedy}"
