"""NRI's hook-injector as it runs here: its process, and what it sees of hooks.d from where that is.

As upstream deploys it, it is a pod with three directories of the host's: two of hooks.d, and /usr/libexec/oci/hooks.d.
It skips a file whose program is missing there, and says nothing.
Source: contrib/kustomize/hook-injector and plugins/hook-injector of containerd/nri.
"""

from __future__ import annotations

import os

from hook.host import hooksd, machine
from hook.host.machine import PODMAN
from hook.host.paths import PROGRAM

_NAME = "hook-injector"
_IN_AN_IMAGE = "plugin"  # what upstream's images call each of their plugins
_VARIABLE = "NRI_PLUGIN_NAME="


def running() -> list[int]:
    """The pids of the injectors that run."""
    return [pid for pid, words in machine.processes().items() if _is_one(pid, os.path.basename(words[0]))]


def _is_one(pid: int, name: str) -> bool:
    if name != _IN_AN_IMAGE:
        return name.endswith(_NAME)
    return any(it.startswith(_VARIABLE) and it.endswith(_NAME) for it in machine.environment(pid))


def why_blind(pid: int) -> str | None:
    """Why an injector gives containers of pods no hook of ours; None: it sees a file for them, and the program.

    Raises OSError.
    """
    view = machine.view_of(pid)
    entries = hooksd.effective(view.at(directory) for directory in hooksd.READERS)
    ours = [it for it in entries if it.calls(PROGRAM) and PODMAN not in it.name]
    if not ours:
        return f"sees no file that calls the hook in {', '.join(hooksd.READERS)}"
    programs = [it.file.hook.path for it in ours if it.file is not None]
    if any(os.path.exists(view.at(path)) for path in programs):
        return None
    return f"cannot see {programs[0]}"
