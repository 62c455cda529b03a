# SPDX-License-Identifier: Apache-2.0
"""An installation: its paths, its owner, its .pyz, and the security settings that can block a program."""

from __future__ import annotations

import io
import marshal
import os
import zipfile
from typing import NamedTuple

from hook import system
from hook.node import files, hooksd, programs
from hook.node.hooksd import PROGRAM

NAME = "resctrl-mon-hook"
CONF_MARK = f"# Made by `{NAME} install`"
OWNER_FILE = f"{NAME}.owner"
USR = "/usr"
STUB = b"#!/bin/true\n"
"""What a removal leaves at the program's path, until the next boot: containers that live call it when they end."""
_UNITS_ON_DEMAND = ("watch.service", "textfile.service", "textfile.timer", "metrics.service")

KUBERNETES, PODMAN = "kubernetes", "podman"
TARGETS = (KUBERNETES, PODMAN)
"""The values of `install --for`: Kubernetes with any runtime, and Podman."""
RUNTIMES = {"crio": KUBERNETES, "containerd": KUBERNETES, "k3s": KUBERNETES, "rke2": KUBERNETES, "podman": PODMAN}
"""The programs that start containers, and the target of each."""


def find_targets(top: str = "") -> list[str]:
    """The targets whose programs are installed."""
    found = [target for name, target in RUNTIMES.items() if programs.find_program(name, top)]
    return [target for target in TARGETS if target in found]


def choose_hooks_dir(prefix: str) -> str:
    """The default directory of the JSON: the administrator's, unless the prefix is /usr."""
    return hooksd.SYSTEM if prefix == USR else hooksd.ADMINISTRATOR


def find_prefix(program: str) -> str | None:
    """The prefix of an installed program; None if it is not at a path of an installation."""
    end = Places("").program
    return program[: -len(end)] if program.endswith(end) else None


class Places:
    """The paths of an installation on the system where it runs. `top`: the directory that has them now (--destdir)."""

    def __init__(self, prefix: str = USR, hooks_dir: str = hooksd.SYSTEM, top: str = "") -> None:
        self.prefix, self.hooks_dir, self.top = prefix, hooks_dir, top
        self.program_dir = f"{prefix}/libexec/oci/hooks.d"
        self.program = f"{self.program_dir}/{PROGRAM}"
        self.owner = f"{self.program_dir}/{OWNER_FILE}"
        """The file that names the owner of the installation, such as a package; `install` makes none."""
        self.link = f"{prefix}/bin/{NAME}"
        self.link_target = os.path.relpath(self.program, os.path.dirname(self.link))  # valid below any `top`
        # Like a package, if the prefix is /usr; else like an administrator.
        library = "/usr/lib/" if prefix == USR else "/etc/"
        names = ("reconcile.service", "reconcile.timer", *_UNITS_ON_DEMAND)
        self.units = [f"{library}systemd/system/{NAME}-{name}" for name in names]
        self.service, self.timer, self.watch, _, self.textfile_timer, self.metrics_service = self.units
        self.tmpfiles = f"{library}tmpfiles.d/{NAME}.conf"
        self.stub_tmpfiles = f"/etc/tmpfiles.d/{NAME}-stub{prefix.replace('/', '-')}.conf"
        """The file by which the next boot removes the stub, and this file."""
        self.conf_dir = f"/etc/{NAME}"
        self.conf = f"{self.conf_dir}/reconcile.conf"
        """The options of the timer's reconcile."""
        self.log_dir = f"/var/log/{NAME}"
        """The directory of the history: root's alone. It stays after an uninstallation."""
        self.logrotate = f"/etc/logrotate.d/{NAME}"
        """Written once: then it is the administrator's, who may keep the history for longer."""

    def json(self, target: str) -> str:
        """The hooks.d file for a target."""
        return f"{self.hooks_dir}/10-{NAME}-{target}.json"

    def at(self, path: str) -> str:
        """A path with `top` before it."""
        return self.top + path

    def files(self) -> list[str]:
        """All files that an installation may have."""
        others = [self.tmpfiles, self.conf]
        return [self.program, self.link, *self.units, *others, *(self.json(target) for target in TARGETS)]

    def is_foreign(self, path: str) -> bool:
        """Whether a file at this path exists and was not installed by us."""
        found = self.at(path)
        if not os.path.lexists(found):
            return False
        if os.path.islink(found) != (path == self.link):
            return True
        if path == self.link:
            return os.path.basename(os.readlink(found)) != PROGRAM
        if path.endswith(".json"):
            return hooksd.read_entry(found).own is None
        try:
            if path == self.program:
                if not is_stub(found):
                    PyzFile(found)
                return False
            mark = CONF_MARK if path in (self.conf, self.logrotate) else NAME
            return mark.encode() not in files.read(found, files.CONFIGURATION)
        except (files.Unreadable, ValueError):
            return True


def is_stub(path: str) -> bool:
    """Whether a file is the stub that a removal leaves."""
    return system.try_call(files.read, path, len(STUB)) == STUB


# --- Owners


class Origin(NamedTuple):
    """The owner of an installation. `again`: how to install its files again; `away`: how to remove them.

    `link`, `timer`: whether the installation has them. `writes`: the directories in which `again` writes files as they
    were; other files, such as copies in /etc, are the administrator's to edit.
    """

    name: str
    again: str
    away: str
    link: bool = True
    timer: bool = True
    writes: tuple[str, ...] = ("/usr/",)


# Its files are the administrator's: `install` without the options of before would write others.
INSTALL = Origin("`install`", f"{NAME}.pyz install", f"{NAME} uninstall", writes=())
_PACKAGE = f"the package {NAME}"
_AGAIN_BY_CHART = (
    "kubectl delete the chart's pod on this node: the next one writes its files again; change options by helm upgrade"
)
OWNERS = {
    "deb": Origin(_PACKAGE, f"apt install --reinstall {NAME}", f"apt remove {NAME}"),
    "rpm": Origin(_PACKAGE, f"dnf reinstall {NAME}", f"dnf remove {NAME}"),
    "chart": Origin("the Helm chart", _AGAIN_BY_CHART, "helm uninstall", link=False, timer=False, writes=("/",)),
    "machineconfig": Origin(
        "a MachineConfig",
        "apply the MachineConfig again",
        "remove it (see the documentation on OpenShift)",
        link=False,
        writes=("/",),
    ),
    "": Origin("an unknown owner", "install it again as it was installed", "remove it as it was installed"),
}
"""The owners that this project makes, by the word in their file. Others may use words of their own.

Without a word: a file that is empty or cannot be read.
"""


def find_origin(places: Places) -> Origin:
    """The owner named beside the program of these paths, or beside one that their hooks.d files call.

    The owner writes the files again: dpkg and rpm with the next version, the chart's pod when it starts. So `install`
    and `uninstall` do not change files of another owner, and the remedies of `doctor` depend on the owner.
    """
    called = [hooksd.read_entry(places.json(target)).file for target in TARGETS]
    paths = [places.program, *(file.hook.path for file in called if file is not None)]
    words = [read_owner(f"{os.path.dirname(it)}/{OWNER_FILE}") for it in paths]
    found = next((it for it in words if it is not None), None)
    if found is None:
        return INSTALL
    word = found.partition("\n")[0]  # the chart notes its release after that
    return OWNERS.get(word, Origin(word, f"install it again with {word}", f"remove it with {word}"))


def read_owner(path: str) -> str | None:
    """The text in an owner's file, a word and maybe more lines; empty if it cannot be read; None: there is no file."""
    try:
        return files.read_text(path, files.CONFIGURATION).strip()
    except files.Unreadable as error:
        return None if error.is_missing and not os.path.islink(path) else ""


# --- The .pyz as a file: its interpreter, and the files in it that `install` copies

# As in packaging/pyz: how much the kernel reads of the first line, since Linux 5.1 and before.
_LONGEST_LINE = 255
_LONGEST_OLD_LINE = 127
_LIMIT = 64 << 20  # bytes: twenty times as many as it has
_FOR_PEOPLE = b"if atexit."  # begins the part of that line which kernels before 5.1 do not see
_BUILD_ID = "bytecode/build-id"
_PROGRAM, _DOCSTRING = "hook/__init__.py", b'"""resctrl-mon-hook:'


class PyzFile:
    """A .pyz. Raises ValueError for any other file."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.data = files.read(path, _LIMIT)
        try:
            with zipfile.ZipFile(io.BytesIO(self.data)) as archive:
                self._entries = {name: archive.read(name) for name in archive.namelist()}
        except zipfile.BadZipFile as error:
            raise ValueError(f"{path} is not a .pyz: {error}") from None
        if not self.data.startswith(b"#!/") or _DOCSTRING not in self._entries.get(_PROGRAM, b""):
            raise ValueError(f"{path} is not a .pyz of {NAME}")
        self._first_line = self.data[: self.data.index(b"\n") + 1]
        self.python = self._first_line[2:].partition(b" ")[0].decode("utf-8", "surrogateescape")
        """The interpreter in its first line."""
        self.build_id = self._entries.get(_BUILD_ID, b"")
        """The digest of its sources."""

    def with_python(self, python: str) -> bytes:
        """Its bytes with another interpreter. Raises ValueError for a path that the kernel rejects.

        The rest is unchanged: neither the zip nor the second line has offsets from the start of the file.
        """
        if not python.startswith("/") or len(python.split()) != 1 or not (python.isprintable() and python.isascii()):
            raise ValueError(f"must be an absolute path without blanks, not {python!r}")
        line = self._first_line
        boot, begin, rest = line[line.index(b" ") :].partition(_FOR_PEOPLE)
        changed = (b"#!" + python.encode("ascii") + boot.rstrip(b" ")).ljust(_LONGEST_OLD_LINE) + begin + rest
        if len(changed) > _LONGEST_LINE:
            limit = f"and the kernel reads {_LONGEST_LINE}"
            raise ValueError(f"too long: the first line would have {len(changed)} bytes, {limit}")
        return changed + self.data[len(line) :]

    def needs_new_kernel(self, python: str) -> bool:
        """Whether the first line is too long for kernels before Linux 5.1."""
        return self.with_python(python).index(_FOR_PEOPLE) > _LONGEST_OLD_LINE

    def has_bytecode(self, magic: bytes) -> bool:
        """Whether it has bytecode for a Python (`magic`: what that begins with, importlib.util.MAGIC_NUMBER)."""
        end_of_second_line = self.data.index(b"\n", len(self._first_line))
        return magic in marshal.loads(self.data[end_of_second_line + 1 :])  # noqa: S302  as trusted as the program

    def text(self, name: str) -> str:
        """The text of a file of the repository in it."""
        return self._entries[name].decode()


# --- What can block a program

_ENFORCE = "/sys/fs/selinux/enforce"
_FAPOLICYD = ("/run/fapolicyd/fapolicyd.fifo", "/run/fapolicyd.pid")  # one is there while it runs
# SELinux types of files that are not programs: a runtime may not start one of these, root may.
_NO_PROGRAM_TYPES = ("admin_home_t", "data_home_t", "default_t", "tmp_t", "unlabeled_t", "user_home_t", "user_tmp_t")


def list_blockers(path: str) -> str:
    """Known causes why a program may not run, each with its remedy; empty if none applies."""
    reasons = []
    if os.statvfs(path).f_flag & os.ST_NOEXEC:
        reasons.append(f"the file system of {path} is mounted noexec: choose another --prefix")
    if (found := _read_type(path)) is not None:
        reasons.append(f"SELinux: {path} has type {found}: run restorecon on it, or see ausearch -m avc")
    if any(map(os.path.exists, _FAPOLICYD)):
        reasons.append(f"fapolicyd: run fapolicyd-cli --file add {path} && fapolicyd-cli --update")
    return "; ".join(reasons)


def find_label_problem(path: str) -> str | None:
    """Why a runtime may not start a program with this SELinux label, though root's shell may; None if it may."""
    found = _read_type(path)
    if found not in _NO_PROGRAM_TYPES:
        return None
    remedy = f"semanage fcontext -a -t bin_t {path} && restorecon {path}"
    return f"SELinux: {path} has type {found}, which runtimes may not start; remedy: {remedy}"


def _read_type(path: str) -> str | None:
    """The SELinux type of a file, `none` if it has no label; None while SELinux does not enforce its policy."""
    if (system.try_call(files.read_text, _ENFORCE, 64) or "").strip() != "1":
        return None
    label = (system.try_call(os.getxattr, path, "security.selinux") or b"").decode("utf-8", "replace")
    return next(iter(label.rstrip("\0").split(":")[2:]), "none")
