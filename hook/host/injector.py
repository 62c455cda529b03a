# SPDX-License-Identifier: Apache-2.0
"""Finds running processes of NRI's hook-injector, and the files that they see.

Upstream deploys it as a pod with three directories of the host: the two of hooks.d, and /usr/libexec/oci/hooks.d. It
skips a file whose program it does not see there, without a message.
Source: contrib/kustomize/hook-injector and plugins/hook-injector of containerd/nri.
"""

from __future__ import annotations

import os

from hook.host import hooksd, machine
from hook.host.machine import PODMAN
from hook.host.paths import PROGRAM

_NAME = "hook-injector"
_IN_AN_IMAGE = "plugin"  # the name of every plugin's program in upstream's images
_VARIABLE = "NRI_PLUGIN_NAME="


def find_running() -> list[int]:
    """The pids of running injectors."""
    return [pid for pid, words in machine.list_processes().items() if _is_injector(pid, os.path.basename(words[0]))]


def _is_injector(pid: int, name: str) -> bool:
    if name != _IN_AN_IMAGE:
        return name.endswith(_NAME)
    return any(it.startswith(_VARIABLE) and it.endswith(_NAME) for it in machine.read_environment(pid))


def find_problem(pid: int) -> str | None:
    """Why an injector gives containers of pods no hook; None if it sees our file and the program. Raises OSError."""
    view = machine.find_view(pid)
    entries = hooksd.merge_directories(view.at(directory) for directory in hooksd.READERS)
    ours = [it for it in entries if it.calls(PROGRAM) and PODMAN not in it.name]
    if not ours:
        return f"sees no file in {' or '.join(hooksd.READERS)} that calls the hook"
    programs = [it.file.hook.path for it in ours if it.file is not None]
    if any(os.path.exists(view.at(path)) for path in programs):
        return None
    return f"cannot see {programs[0]}"
