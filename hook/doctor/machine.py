# SPDX-License-Identifier: Apache-2.0
"""`doctor --report`: what the kernel shows of a machine, for its maintainers.

It names no pod, container or group.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from hook import __version__, inventory, resctrl, system
from hook.doctor.checks import name_tool
from hook.errors import HookError
from hook.models import Options
from hook.node import files


def make_report(options: Options) -> dict[str, Any]:
    """Return the object that `doctor --report` prints."""
    root, uname = options.resctrl_root, os.uname()
    telemetry = system.try_call(files.match, "/sys/class/intel_pmt/*/guid") or []
    return {
        "version": __version__,
        "kernel": {"release": uname.release, "version": uname.version, "machine": uname.machine},
        "boot": [
            word
            for word in _read("/proc/cmdline").split()
            if word.startswith(("rdt=", "clearcpuid="))
        ],
        "cpu": _read("/proc/cpuinfo").partition("\n\n")[0].split("\n"),
        "files": {
            path: _read(path)
            for path in (*_walk(f"{root}/info"), *_walk(f"{root}/mon_data"), *telemetry)
        },
        **_count_groups(resctrl.Resctrl(root), options.group_prefix),
    }


def _read(path: str) -> str:
    """Return the first 64 KiB of a file; if the kernel refuses to show it,
    the name of the error.
    """
    try:
        return files.read_head(path, 1 << 16).decode("ascii", "replace").strip()
    except files.Unreadable as error:
        return error.why


def _walk(top: str) -> Iterator[str]:
    """Yield the paths of the files in a tree of the kernel's."""
    for name in system.try_call(files.list_names, top) or []:
        path = f"{top}/{name}"
        if os.path.isdir(path):
            yield from _walk(path)
        elif (
            name != "last_cmd_status"
        ):  # the kernel's complaint about the last command may name its group
            yield path


def _count_groups(kernel: resctrl.Resctrl, prefix: str) -> dict[str, Counter[str]]:
    """Count the mon_groups by owner, and for each of their counters how often it is a number,
    and each other text.
    """
    groups, counters = Counter[str](), Counter[str]()
    for path in system.try_call(inventory.list_mon_groups, kernel.root) or []:
        name = os.path.basename(path)
        groups["ours" if name.startswith(prefix) else name_tool(name)] += 1
        with suppress(HookError):  # it is gone
            shown = kernel.counters(path).items()
            counters.update(
                f"{counter}: {'a number' if text[:1].isdigit() else text}"
                for counter, text in shown
            )
    return {"mon_groups": groups, "counters": counters}
