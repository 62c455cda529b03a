# SPDX-License-Identifier: Apache-2.0
"""A node's files where a node has them: what resctrl and /proc show,
and a run directory with the records of a test.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from hook import system
from hook.models import Failure, Index, KeyState, Options
from hook.node.models import ReconcileRecord, ViewRecord, WatchRecord

BEGIN = {"mon_L3_00/mbm_total_bytes": "1000", "mon_PERF_PKG_00/core_energy": "5.500000"}
NOW = {
    "mon_L3_00/llc_occupancy": "4096",
    "mon_L3_00/mbm_total_bytes": "5000",
    "mon_PERF_PKG_00/core_energy": "8.750000",
}
PID = 4711
"""The process that runs on a node of pyfakefs."""


class NodeFiles:
    """The files of a node below `top`.

    `options` name its places. RMIDs: 16 for cache and bandwidth, 8 for energy.

    On a pyfakefs file system `top` is `/`: see the fixture `node` in conftest.
    """

    def __init__(self, top: Path = Path("/"), pid: int | None = None) -> None:
        self.root = top / "sys/fs/resctrl"
        self.run = top / "run/resctrl-mon-hook"
        self.options = Options(resctrl_root=str(self.root), run_dir=str(self.run))
        self.pid = pid or os.getpid()
        self.run.parent.mkdir(parents=True)
        (self.root / "mon_groups").mkdir(parents=True)
        (self.root / "mon_data").mkdir()
        for name, rmids in {"L3_MON": "16\n", "PERF_PKG_MON": "8\n", "L3": None}.items():
            (self.root / "info" / name).mkdir(parents=True)
            if rmids is not None:
                (self.root / "info" / name / "num_rmids").write_text(rmids)

    @property
    def places(self) -> list[str]:
        """The options as a command line."""
        return [f"--resctrl-root={self.root}", f"--run-dir={self.run}"]

    def path(self, name: str, ctrl_group: str = "/") -> Path:
        """Where a mon_group lies."""
        return self.root / ctrl_group.strip("/") / "mon_groups" / name

    def make(self, name: str, ctrl_group: str = "/", counters: dict[str, str] | None = None) -> str:
        """A mon_group with these counters; its path."""
        path = self.path(name, ctrl_group)
        path.mkdir(parents=True)
        self.count(name, counters or {}, ctrl_group)
        return str(path)

    def count(self, name: str, counters: dict[str, str], ctrl_group: str = "/") -> None:
        """Set counters of a mon_group."""
        self._count(self.path(name, ctrl_group), counters)

    def count_whole(self, counters: dict[str, str], ctrl_group: str = "/") -> None:
        """Set counters of a ctrl_group: the sum over it and its mon_groups."""
        self._count(self.root / ctrl_group.strip("/"), counters)

    def _count(self, group: Path, counters: dict[str, str]) -> None:
        for counter, text in counters.items():
            file = group / "mon_data" / counter
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text + "\n")

    def write(self, part: str, name: str, text: str) -> Path:
        """A file of the run directory."""
        path = self.run / part / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def record(self, key: str, **fields: Any) -> KeyState:  # noqa: ANN401
        """Record a key, of kind `container` if nothing else is said."""
        state = KeyState(**{"key": key, "kind": "container", **fields})
        self.write("groups", f"{key}.json", json.dumps(state.model_dump()))
        return state

    def index(self, container: str, key: str) -> None:
        self.write("members", f"{container}.json", json.dumps(Index(key=key).model_dump()))

    def fail(self, container: str, reason: str = "no_rmids", **fields: Any) -> Failure:  # noqa: ANN401
        """Record that a container is not monitored."""
        known = {
            "stage": "createRuntime",
            "problem": "no RMID is left",
            "time": "2026-01-02T03:04:05Z",
        }
        failure = Failure(**{"container": container, "reason": reason, **known, **fields})
        self.write("unmonitored", f"{container}.json", json.dumps(failure.model_dump()))
        return failure

    def unhooked(self, *containers: str, **fields: Any) -> None:  # noqa: ANN401
        """What reconcile found of containers that were never hooked."""
        pod = {"namespace": "shop", "pod": "web-0", "name": "app"}
        record = {
            "since": "2026-01-02T03:04:05Z",
            "unchecked": 0,
            "rules": "",
            "others": [],
            **fields,
        }
        self.write(
            "",
            "unhooked.json",
            json.dumps({"containers": dict.fromkeys(containers, pod), **record}),
        )

    def reconciled(self, **fields: Any) -> None:  # noqa: ANN401
        """What reconcile has done since boot."""
        self.write("", "reconcile.json", json.dumps(ReconcileRecord(**fields).model_dump()))

    def watched(self, **fields: Any) -> None:  # noqa: ANN401
        """What the watch that runs has done."""
        self.write("", "watch.json", json.dumps(WatchRecord(**fields).model_dump()))

    def kept_view(self, **fields: Any) -> None:  # noqa: ANN401
        """When the consumers' view was right."""
        self.write("", "view.json", json.dumps(ViewRecord(**fields).model_dump()))

    def live(self, key: str, *, begin: dict[str, str] | None = None, **fields: Any) -> KeyState:  # noqa: ANN401
        """A key with one container of the same name that runs (this very process), in one group."""
        path = self.make(f"oci-{key}", counters=NOW)
        group = {"path": path, "ctrl_group": "/", "begin": BEGIN if begin is None else begin}
        return self.record(key, **{"groups": [group], "members": {key: self.alive(path)}, **fields})

    def completed(self, key: str, **fields: Any) -> KeyState:  # noqa: ANN401
        """A key that is over."""
        group = {
            "path": str(self.path(f"oci-{key}")),
            "ctrl_group": "/",
            "begin": BEGIN,
            "end": NOW,
        }
        ended = {"completed_at": "2026-01-02T03:04:05Z", "completed_boottime": 100.0}
        return self.record(key, **{"groups": [group], **ended, **fields})

    def alive(self, group: str, **fields: Any) -> dict[str, Any]:  # noqa: ANN401
        """A member whose process runs."""
        return {"pid": self.pid, "starttime": system.starttime(self.pid), "group": group, **fields}

    def take(self, name: str = "theirs", ctrl_group: str = "/") -> str:
        """Another tool has moved the process that is a member to a group of its own;
        returns the path of that group.
        """
        path = self.make(name, ctrl_group)
        (self.path(name, ctrl_group) / "tasks").write_text(f"1\n{self.pid}\n")
        return path

    def dead(self, group: str) -> dict[str, Any]:
        """A member whose process is gone: this pid is another one's now."""
        return {"pid": self.pid, "starttime": 1, "group": group}


def add_process(
    pid: int,
    starttime: int = 100,
    cgroup: str = "/",
    parent: int = 1,
    flags: int = 0,
    uids: str = "0\t0\t0\t0",
) -> None:
    """A process with one thread in /proc of a pyfakefs file system: proc(5)."""
    directory = Path(f"/proc/{pid}")
    directory.mkdir(parents=True)
    fields = ["S", parent, *4 * [0], flags, *10 * [0], 1, 0, starttime, *30 * [0]]
    (directory / "stat").write_text(f"{pid} (app) {' '.join(map(str, fields))}\n")
    (directory / "cgroup").write_text(f"0::{cgroup}\n")
    (directory / "status").write_text(f"Name:\tapp\nUid:\t{uids}\n")
    (directory / f"task/{pid}").mkdir(parents=True)
