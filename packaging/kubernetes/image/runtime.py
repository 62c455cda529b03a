# SPDX-License-Identifier: Apache-2.0
"""Answers `runc --root DIRECTORY state ID`, which `reconcile --adopt` asks,
by the files that runc and crun keep.

In the chart's container it is the program `runc`: node.py writes it to PROGRAM, with the image's
Python in its first line. So no program of the node runs there, which has nothing of the runtimes
but their directories of state, read-only. It writes a `config.json` with what `reconcile` reads of
one into a directory of its own: the annotations, and the cgroup that the runtime was asked for. The
bundle's own is not visible.

Sources: runc, libcontainer/container.go (BaseState) and libcontainer/configs/config.go; crun,
src/libcrun/status.c, and libcrun_copy_config_file in container.c. Both keep exec.fifo until
the container is started.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

BUNDLES = "/adopt"
"""The directory for the config.json files, which the chart mounts with `adopt=true`."""
PROGRAM = f"{BUNDLES}/runc"
"""Where hook/node/runtimes.py looks for it."""
ROOTS = ("/host/run/runc", "/host/run/crun", "/host/run/containerd/runc/k8s.io")
"""The node's directories of state: of CRI-O's runc and crun,
and of containerd's (also of k3s and RKE2).
"""


def write_program() -> None:
    """Make this script a program that starts in any image."""
    Path(PROGRAM).write_text(
        f"#!{sys.executable}\n{Path(__file__).read_text(encoding='utf-8')}", encoding="utf-8"
    )
    os.chmod(PROGRAM, 0o755)  # noqa: S103  it has no secrets


def read_state(directory: str) -> tuple[int, int, dict[str, Any]]:
    """Return a container's pid, start time in ticks, and config.json. Raises what main reports."""
    runcs = Path(directory, "state.json")
    if not runcs.exists():
        status = json.loads(Path(directory, "status").read_bytes())
        config = json.loads(Path(directory, "config.json").read_bytes())
        path = config.get("linux", {}).get("cgroupsPath")
        return (
            status["pid"],
            status["process-start-time"],
            make_config(config.get("annotations") or {}, path),
        )
    state = json.loads(runcs.read_bytes())
    labels = dict(label.split("=", 1) for label in state["config"]["labels"] or [] if "=" in label)
    labels.pop("bundle", None)  # runc adds it to the annotations
    cgroups = state["config"]["cgroups"]
    path = cgroups.get("path") or ":".join(
        cgroups.get(name) or "" for name in ("parent", "scope_prefix", "name")
    )
    return state["init_process_pid"], state["init_process_start"], make_config(labels, path)


def make_config(annotations: dict[str, str], path: str | None) -> dict[str, Any]:
    return {"annotations": annotations, "linux": {"cgroupsPath": path}}


def is_alive(pid: int, starttime: int) -> bool:
    """Return whether a process runs, and is no later one with the same pid (proc_pid_stat(5))."""
    try:
        fields = (
            Path(f"/proc/{pid}/stat")
            .read_text(encoding="utf-8", errors="replace")
            .rpartition(")")[2]
            .split()
        )
    except OSError:
        return False
    return fields[0] not in "ZX" and int(fields[19]) == starttime


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(usage=__doc__, add_help=False, allow_abbrev=False)
    parser.add_argument("--root", required=True)
    parser.add_argument("verb", choices=["state"])
    parser.add_argument("id")
    given = parser.parse_args(arguments)
    directory = f"{given.root}/{given.id}"
    try:
        pid, starttime, config = read_state(directory)
        bundle = Path(BUNDLES, given.id)
        bundle.mkdir(exist_ok=True)
        (bundle / "config.json").write_text(json.dumps(config), encoding="utf-8")
    except (AttributeError, LookupError, OSError, TypeError, ValueError) as error:
        print(f"{directory}: {error!r}", file=sys.stderr)
        return 1
    status = "created" if os.path.exists(f"{directory}/exec.fifo") else "running"
    if not is_alive(pid, starttime):
        pid, status = 0, "stopped"
    answer = {
        "ociVersion": "1.0.2",
        "id": given.id,
        "status": status,
        "pid": pid,
        "bundle": str(bundle),
    }
    print(json.dumps({**answer, "annotations": config["annotations"]}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
