# SPDX-License-Identifier: Apache-2.0
"""An installation: its paths, and its owner."""

from __future__ import annotations

import os
from typing import NamedTuple

from hook import system
from hook.node import files, hooksd, programs

NAME = hooksd.NAME
OPTIONS = ("resctrl_root", "run_dir", "group_prefix")
"""The options of the hook that say where its files and groups are."""
JOBS_MARK = f"# Made by `{NAME} install --for=jobs`: no hooks.d file is wanted"
OWNER_FILE = f"{NAME}.owner"
USR = "/usr"
# The default of `history`, and in the hooks.d files.
HISTORY = "/var/log/resctrl-mon-hook/history.jsonl"
STUB = b"#!/bin/true\n"
"""What a removal leaves at the program's path, until the next boot:
live containers call that path when they end.
"""

KUBERNETES, PODMAN = "kubernetes", "podman"
TARGETS = (KUBERNETES, PODMAN)
"""What a hooks.d file is for: Kubernetes with any runtime, and Podman."""
FOR: dict[str, tuple[str, ...] | None] = {
    KUBERNETES: (KUBERNETES,),
    PODMAN: (PODMAN,),
    "both": TARGETS,
    "jobs": (),
}
FOR["same"] = None
"""The values of `install --for`, and the targets of each; None:
the hooks.d files stay as they are.
"""
RUNTIMES = {
    "crio": KUBERNETES,
    "containerd": KUBERNETES,
    "k3s": KUBERNETES,
    "rke2": KUBERNETES,
    "podman": PODMAN,
}
"""The programs that start containers, and the target of each."""
CONTAINERDS = ("containerd", "k3s", "rke2")


def find_targets(top: str = "") -> list[str]:
    """Return the targets whose programs are installed."""
    installed = [target for name, target in RUNTIMES.items() if programs.find_program(name, top)]
    return [target for target in TARGETS if target in installed]


def find_prefix(program: str) -> str | None:
    """Return the prefix of an installed program; None if no installation has this path."""
    end = Places(prefix="").program
    return program[: -len(end)] if program.endswith(end) else None


class Places:
    """The paths of an installation on the system where it runs.

    `top` is the directory that has these paths now (--destdir). The default directory of the JSON
    is the administrator's, unless the prefix is /usr.
    """

    def __init__(self, prefix: str = USR, hooks_dir: str | None = None, top: str = "") -> None:
        self.prefix, self.top = prefix, top
        self.hooks_dir = hooks_dir or (hooksd.SYSTEM if prefix == USR else hooksd.ADMINISTRATOR)
        self.program_dir = f"{prefix}/libexec/oci/hooks.d"
        self.program = f"{self.program_dir}/{hooksd.PROGRAM}"
        # The file that names the owner of the installation, such as a package;
        # `install` makes none.
        self.owner = f"{self.program_dir}/{OWNER_FILE}"
        self.link = f"{prefix}/bin/{NAME}"
        # Valid below any `top`.
        self.link_target = os.path.relpath(self.program, os.path.dirname(self.link))
        # Like a package, if the prefix is /usr; else like an administrator.
        library = "/usr/lib/" if prefix == USR else "/etc/"
        units = (
            "reconcile.service reconcile.timer watch.service view.service textfile.service "
            "textfile.timer"
        )
        self.units = [
            f"{library}systemd/system/{NAME}-{name}" for name in (*units.split(), "metrics.service")
        ]
        _, self.timer, self.watch, self.view, _, self.textfile_timer, self.metrics_service = (
            self.units
        )
        self.tmpfiles = f"{library}tmpfiles.d/{NAME}.conf"
        # The file by which the next boot removes the stub, and this file.
        self.stub_tmpfiles = f"/etc/tmpfiles.d/{NAME}-stub{prefix.replace('/', '-')}.conf"
        # The directory of the history, for root alone. It stays after an uninstallation.
        self.log_dir = f"/var/log/{NAME}"

    def json(self, target: str) -> str:
        """Return the path of the hooks.d file for a target."""
        return f"{self.hooks_dir}/10-{NAME}-{target}.json"

    def at(self, path: str) -> str:
        """Return a path with `top` before it."""
        return self.top + path

    def files(self) -> list[str]:
        """Return all files that an installation must have to itself."""
        return [self.program, self.link, *self.units, self.tmpfiles, *map(self.json, TARGETS)]

    def is_for_jobs(self) -> bool:
        """Return whether `install --for=jobs` made this installation: its units say so."""
        return JOBS_MARK.encode() in (
            system.try_call(files.read, self.at(self.timer), files.CONFIGURATION) or b""
        )

    def adopts(self) -> bool:
        """Return whether `install --adopt` made this installation: its unit says so."""
        unit = system.try_call(files.read, self.at(self.units[0]), files.CONFIGURATION) or b""
        return b" reconcile --adopt\n" in unit

    def is_foreign(self, path: str) -> bool:
        """Return whether a file exists at this path that we did not install."""
        there = self.at(path)
        if not os.path.lexists(there):
            return False
        if os.path.islink(there) or path == self.link:
            return (
                path != self.link
                or os.path.basename(system.try_call(os.readlink, there) or "") != hooksd.PROGRAM
            )
        if path.endswith(".json"):
            return hooksd.read_entry(there).our_hook is None
        mark = hooksd.IN_PROGRAM if path == self.program else NAME
        content = system.try_call(files.read, there, hooksd.LARGEST)
        return content is None or (
            mark.encode() not in content and (path != self.program or content != STUB)
        )


def is_stub(path: str) -> bool:
    """Return whether a file is the stub that a removal leaves."""
    return system.try_call(files.read, path, len(STUB)) == STUB


# --- Owners


class Origin(NamedTuple):
    """The owner of an installation."""

    name: str
    # how to install its files again, and how to remove them
    again: str
    away: str
    # the directories in which `again` restores files; the administrator may edit others,
    # such as copies in /etc
    writes: tuple[str, ...] = ("/usr/",)


# Its files are the administrator's: `install` without the options of before would write others.
INSTALL = Origin("`install`", f"{NAME} install", f"{NAME} uninstall", writes=())
_PACKAGE = f"the package {NAME}"
_CHART = (
    "delete the chart's pod on this node: the next one writes its files again; the chart's values "
    "have the options"
)
_MACHINECONFIG = ("apply the MachineConfig again", "remove it (see the documentation on OpenShift)")
OWNERS = {
    "deb": Origin(_PACKAGE, f"`apt install --reinstall {NAME}`", f"apt remove {NAME}"),
    "rpm": Origin(_PACKAGE, f"`dnf reinstall {NAME}`", f"dnf remove {NAME}"),
    "chart": Origin("the Helm chart", _CHART, "helm uninstall", writes=("/",)),
    "machineconfig": Origin("a MachineConfig", *_MACHINECONFIG, writes=("/",)),
    "": Origin(
        "an unknown owner", "install it again as it was installed", "remove it as it was installed"
    ),
}
"""The owners that this project knows, by the word in their file; others may use other words.

The empty word means a file that is empty or unreadable.
"""


def find_origin(places: Places) -> Origin:
    """Return the owner named beside the program of these paths,
    or beside one that their hooks.d files call.

    The owner writes the files again: dpkg and rpm with the next version, the chart's pod when it
    starts. So `install` and `uninstall` do not change files of another owner, and the remedies of
    `doctor` depend on the owner.
    """
    called = [hooksd.read_entry(places.json(target)).file for target in TARGETS]
    called_programs = [places.program, *(file.hook.path for file in called if file is not None)]
    texts = (read_owner(f"{os.path.dirname(program)}/{OWNER_FILE}") for program in called_programs)
    text = next((text for text in texts if text is not None), None)
    if text is None:
        return INSTALL
    word = text.partition("\n")[0]  # the chart notes its release after that
    return OWNERS.get(word, Origin(word, f"install it again with {word}", f"remove it with {word}"))


def read_owner(path: str) -> str | None:
    """Return the text in an owner's file: a word, and maybe more lines.

    The result is empty if the file cannot be read, and None if there is no file.
    """
    try:
        return files.read_text(path, files.CONFIGURATION).strip()
    except files.Unreadable as error:
        return None if error.is_missing and not os.path.islink(path) else ""
