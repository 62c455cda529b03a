# SPDX-License-Identifier: Apache-2.0
"""The hook in a container's start: under runc and Podman, beside a hook that only starts and exits Python, and none."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from tests.bench.common import CannotMeasure, NotReady
from tests.bench.figures import Figure, Table, ratios
from tests.bench.launcher import LEAVES_BEHIND, Step
from tests.bench.plain_node import PlainNode, plain_node
from tests.bench.rounds import Bench
from tests.support.containers import ALWAYS, DEADLINE, Lab, missing
from tests.support.hook import UID

HOOK, IDLE, NONE = "hook", "Python alone", "no hook"
WAYS = (HOOK, IDLE, NONE)
PAIRS = ((HOOK, IDLE), (HOOK, NONE), (IDLE, NONE))
IDLE_HOOK = "#!/usr/bin/python3 -IScimport posix;posix._exit(0)\n"
RUNC, PODMAN = "runc create", "podman run"
TARGETS = {(RUNC, HOOK, IDLE): 1.10}


def runtimes(bench: Bench) -> Table:
    """`runc create`, and the whole of `podman run --rm` with both hooks, of the first container of a pod."""
    if reason := missing(model=False):
        raise NotReady(reason)
    with plain_node() as node, closing(Lab([f"--resctrl-root={node.root}", f"--run-dir={node.run_dir}"])) as lab:
        starts = Starts(lab, node)

        # A `runc create` takes from half to double of the usual time, with no hook at all
        times = {
            **bench.seconds(3 * bench.rounds, lambda: map(starts.by_runc, WAYS)),
            **bench.seconds(bench.fewer(3), lambda: map(starts.by_podman, WAYS)),
        }
        if left := node.left():
            raise CannotMeasure(f"container starts: left behind: {left}")
    figures = [
        Figure(f"{name}: {way} / {other}", "wall time", ratios(times[way, name], times[other, name]), target)
        for name in (RUNC, PODMAN)
        for way, other in PAIRS
        for target in [TARGETS.get((name, way, other))]
    ]
    return Table("container starts", figures)


class Starts:
    """Containers of a lab, which are hooked in several ways."""

    def __init__(self, lab: Lab, node: PlainNode) -> None:
        self._lab = lab
        self._node = node
        idle = lab.base / "idle"
        idle.write_text(IDLE_HOOK)
        idle.chmod(0o755)
        self._hooks = {HOOK: [lab.hook_entry()], IDLE: [lab.hook_entry(idle, ["idle"])], NONE: []}
        for way in self._hooks:
            self._hooks_dir(way).mkdir()
        lab.add_hook("hook.json", ALWAYS, directory=self._hooks_dir(HOOK))
        lab.add_hook("hook.json", ALWAYS, path=idle, args=["idle"], directory=self._hooks_dir(IDLE))

    def by_runc(self, way: str) -> Iterator[Step]:
        """A container that is created; it is deleted before it runs."""
        key, container = self._key(way), self._node.new_container()
        hooks, annotations = self._hooks[way], {"io.kubernetes.pod.uid": key}
        config = self._lab.runc_config(container, ["/bin/true"], annotations, hooks)
        bundle = self._lab.base / f"bundle-{container}"
        bundle.mkdir()
        (bundle / "config.json").write_text(json.dumps(config))
        runc, env = ["runc", f"--root={self._lab.base}/runc"], self._lab.environment
        yield Step(way, RUNC, [*runc, "create", f"--bundle={bundle}", container], environment=env)
        members = self._node.members([key])
        subprocess.run([*runc, "delete", "--force", container], env=env, check=True, timeout=DEADLINE)
        if members != ({container} if way == HOOK else set()):
            raise CannotMeasure(f"runc, {way}: members {members}; {self._node.hook().failures()}")

    def by_podman(self, way: str) -> Iterator[Step]:
        """A container that ends at once, and is removed."""
        key, lab = self._key(way), self._lab
        # 127: it was removed before Podman asked for its status
        words = ["sh", "-c", '"$@" || test $? = 127', "sh"]
        words += [*lab.podman_command(), f"--hooks-dir={self._hooks_dir(way)}", "run", "--rm"]
        # Whose pod it is is told by its cgroup, as the kubelet makes it
        words += [*lab.options(self._node.new_container()), f"--cgroup-parent={lab.cgroups.path}/pod{key}"]
        command = [*words, "--rootfs", str(lab.rootfs), "/bin/true"]
        yield Step(way, PODMAN, command, environment=lab.environment, options=(LEAVES_BEHIND,))
        if way == HOOK and not self._node.hook().recorded(key):
            raise CannotMeasure(f"podman did not call the hook: {self._node.hook().failures()}")

    def _key(self, way: str) -> str:
        return self._node.new_key() if way == HOOK else UID

    def _hooks_dir(self, way: str) -> Path:
        return self._lab.base / f"hooks of {way}"
