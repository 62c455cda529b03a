# SPDX-License-Identifier: Apache-2.0
"""Ten minutes of three nodes, in seconds: what the program exports every 15 s, and what is true.

Node `a` lives: pods come and go, another tool removes a group, RMIDs run out, reconcile stops. On `b` resctrl is not
mounted. On `c` reconcile never ends, its tasks were late, and watch is killed. Time is what the samples say.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from urllib.request import urlopen

from tests.resctrlfs import Mounted
from tests.support.chart import ROOT
from tests.support.hook import DEADLINE, Hook, created, end, stopped, task
from tests.support.prometheus import Labels, read_samples

STEP = 15
"""Seconds between two scrapes."""
STEPS = 40
START = 1_700_000_100
"""Unix time of the first scrape."""
RECONCILES = (4, 8, 12, 16)
WIPED, FAILS, REMADE = 10, 12, 16
"""When another tool removes a group, when it cannot be made again, when it is."""
FULL = 17
"""When no RMID is left for a container."""
ROOT_WATTS, GOLD_WATTS, BATCH_WATTS = 7, 2, 8
WATTS = {("shop", "web"): 30, ("shop", "db"): 5, ("shop", "lost"): 1}
CONTAINER_WATTS = 3
BYTES = 1_000_000
"""Of memory traffic, for each joule; two fifths of it are local."""
OCCUPANCY = 65536
LATE = 2
"""CPU seconds in each step, on node c."""
KILLED = 10
"""When watch is killed there."""
MOVED = 3
"""Tasks that it moves in each step until then."""
RMIDS = 8
SERVER = (
    "import runpy; from hook.show import server; server._SHARED = 0.0; runpy.run_module('hook', run_name='__main__')"
)
"""`metrics --listen` without a second between two readings: here it lasts longer than a step."""


class ChargedPod:
    """A container that uses `watts`: the only one of a pod, or of none."""

    def __init__(self, name: str, number: int, namespace: str = "", watts: int = 0) -> None:
        self.name, self.namespace, self.watts = name, namespace, watts
        self.uid = f"87a3fb58-4084-4186-9c0e-{number:012x}"
        self.container = f"c{number}"
        self.key = self.uid if namespace else self.container
        self.group = f"/mon_groups/oci-{self.key}"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def annotations(self) -> dict[str, str]:
        names = {"io.kubernetes.pod.name": self.name, "io.kubernetes.pod.namespace": self.namespace}
        return {"pod_uid": self.uid, **names} if self.namespace else {}


class TenMinutes:
    """`scrapes`: the node, the step, and all samples of each. `joules`: what each pod used, `nobody` what none did."""

    def __init__(self, directory: Path, resctrl: Mounted, stack: ExitStack) -> None:
        self.hook = Hook(resctrl.root, directory / "run", options=("--lock-timeout=60", "--rmid-wait=0"))
        self.resctrl = resctrl
        self.stack = stack
        self.pods: list[ChargedPod] = []
        self.began: list[float] = []
        self.scrapes: list[tuple[str, int, list[tuple[str, Labels, float]]]] = []
        self.joules: dict[tuple[str, str], float] = {}
        self.nobody: list[float] = []
        self._numbers = iter(range(1, 1000))
        self._late = directory / "late"
        nodes = {"a": self.hook, "b": Hook(directory / "resctrl-b", directory / "run-b")}
        (directory / "resctrl-b").mkdir()
        (directory / "resctrl-c" / "mon_groups").mkdir(parents=True)
        nodes["c"] = Hook(directory / "resctrl-c", self._late)
        self.urls = {name: self._listen(hook) for name, hook in nodes.items()}

    def _listen(self, hook: Hook) -> str:
        words = ["metrics", f"--resctrl-root={hook.resctrl_root}", f"--run-dir={hook.run_dir}", "--listen=127.0.0.1:0"]
        process = subprocess.Popen([sys.executable, "-c", SERVER, *words], cwd=ROOT, stdout=subprocess.PIPE, env={})
        self.stack.callback(process.communicate)
        self.stack.callback(process.kill)
        assert process.stdout is not None
        return process.stdout.readline().decode().split()[-1]

    def live(self) -> None:
        """Let it all happen."""
        (self.resctrl.root / "gold").mkdir()
        (self.resctrl.root / "mon_groups" / "theirs").mkdir()
        for (namespace, name), watts in WATTS.items():
            self._begin(name, namespace, watts)
        self._begin("", "", CONTAINER_WATTS)
        self._begin("batch-0", "batch", BATCH_WATTS)
        for step in range(STEPS + 1):
            self.began.append(time.time())
            if step:
                self._use()
            self._write_late(step)
            self._scrape(step)
            self._happen(step)

    def _happen(self, step: int) -> None:
        """What changes between this scrape and the next one."""
        if step % 4 == 0 and 0 < step < STEPS:
            self._finish(next(pod for pod in self.pods if pod.namespace == "batch"))
            self._begin(f"batch-{step}", "batch", BATCH_WATTS)
        if step == WIPED:
            (lost,) = (pod for pod in self.pods if pod.name == "lost")
            (self.resctrl.root / lost.group[1:]).rmdir()
        if step in RECONCILES:
            self._reconcile(step)
        if step == FULL:
            full = ChargedPod("full", next(self._numbers), "shop")
            self._run(full)

    def _begin(self, name: str, namespace: str, watts: int) -> None:
        pod = ChargedPod(name, next(self._numbers), namespace, watts)
        self._run(pod)
        self.pods.append(pod)
        self.joules.setdefault((namespace, name), 0)
        self._count("set_counter", pod.group, "llc_occupancy", "mon_L3_00", value=OCCUPANCY)

    def _run(self, pod: ChargedPod) -> None:
        pod.process = self.stack.enter_context(task())
        self.hook(created(pod.container, pod.process.pid, **pod.annotations))

    def _finish(self, pod: ChargedPod) -> None:
        assert pod.process is not None
        end(pod.process)
        self.hook(stopped(pod.container, **pod.annotations))
        self.pods.remove(pod)

    def _reconcile(self, step: int) -> None:
        if step == FAILS:
            self.resctrl.control(do="inject", op="mkdir", error="EIO", path="", times=-1)
        forget = ("--snapshot-ttl=0",) if step < WIPED else ()  # a group that is made again would have no begin with it
        every = "--monitor=opt-out"  # with a filter, pods that the machine has are not counted as never hooked
        assert self.hook.ask("reconcile", every, *forget).status == (step == FAILS)
        self.resctrl.control(do="clear")
        if step == max(RECONCILES):
            pod = {"namespace": "shop", "pod": "old-0", "name": "app"}
            found = {"since": "2026-01-02T03:04:05Z", "unchecked": 1, "rules": "", "others": []}
            containers = {"x1": pod, "x2": pod}
            (self.hook.run_dir / "unhooked.json").write_text(json.dumps({"containers": containers, **found}))

    def _write_late(self, step: int) -> None:
        """Node c: a reconcile that was killed, one that moved tasks in late, and a watch."""
        self._late.mkdir(mode=0o755, exist_ok=True)
        record = {"version": 1, "started_at": self.began[step], "late_cpu": float(LATE * step)}
        (self._late / "reconcile.json").write_text(json.dumps(record))
        last = min(step, KILLED)
        times = {"started_at": self.began[0], "alive_at": self.began[last]}
        watched = {"version": 1, **times, "moved": MOVED * last, "failed": last, "overflows": last}
        (self._late / "watch.json").write_text(json.dumps(watched))

    def _use(self) -> None:
        """Let all that runs use what it does in a step."""
        nobody = ROOT_WATTS
        for pod in self.pods:
            if (self.resctrl.root / pod.group[1:]).is_dir():
                self._grow(pod.group, pod.watts)
                self.joules[pod.namespace, pod.name] += pod.watts * STEP
            else:  # its tasks are in the root group
                nobody += pod.watts
        self.nobody.append(nobody)
        self._grow("/", nobody)
        self._grow("/gold", GOLD_WATTS)

    def _grow(self, group: str, watts: int) -> None:
        """A pod's tasks stay on one package, those of a ctrl_group run on both."""
        packages = (0,) if "mon_groups" in group else (0, 1)
        for package in packages:
            joules = watts * STEP / len(packages)
            self._count("add", group, "core_energy", f"mon_PERF_PKG_0{package}", amount=joules)
        for event, share in (("mbm_total_bytes", 1.0), ("mbm_local_bytes", 0.4)):
            self._count("add", group, event, "mon_L3_01", amount=int(watts * STEP * BYTES * share))

    def _count(self, do: str, group: str, event: str, domain: str, **how: object) -> None:
        self.resctrl.control(do=do, group=group, domain=domain, event=event, **how)

    def _scrape(self, step: int) -> None:
        for node, url in self.urls.items():
            with urlopen(url, timeout=DEADLINE) as answer:  # noqa: S310  our own
                self.scrapes.append((node, step, [*read_samples(answer.read().decode())]))

    def at(self, step: int) -> int:
        """The Unix time of a step."""
        return START + STEP * step

    def scale(self, name: str, value: float) -> float:
        """A sample's value; a time of day is that of the step in which it was."""
        if not re.search("_timestamp_seconds$", name):
            return value
        return float(self.at(max(step for step, began in enumerate(self.began) if began <= value + 1e-5)))

    def samples(self, attach: Callable[[Labels, str], Labels]) -> list[tuple[str, Labels, float, int]]:
        """All of them as Prometheus has them. `attach` gives the labels of a target on a node."""
        return [
            (name, attach(labels, node), self.scale(name, value), self.at(step))
            for node, step, found in self.scrapes
            for name, labels, value in found
        ]
