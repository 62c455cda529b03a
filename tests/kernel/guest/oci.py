# SPDX-License-Identifier: Apache-2.0
"""Containers by runc and crun, with the hook in their config.json, whose first act is to read which group they are in.

The command is one `cat` of /proc/self/cpu_resctrl_groups and of a FIFO: nothing runs in the container before that
first read, and the FIFO holds it until finish().
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.cgroups import path_of
from tests.support.containers import bundle_config, make_rootfs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.support.hook import Hook

DEADLINE = 300.0
GROUPS = "/proc/self/cpu_resctrl_groups"
ENVIRONMENT = ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]


class ForegroundContainer:
    """A foreground `runc run` or `crun run`: when it has ended, the poststop hooks have run."""

    def __init__(self, runtime: str, name: str, bundle: Path) -> None:
        self.name = name
        self.gates = bundle / "gates"
        self._gate = self.gates / "go"
        self._output = bundle / "output"
        self._errors = bundle / "errors"
        self._runtime = [runtime, f"--root={bundle.parent}/{runtime}-state"]
        with self._output.open("wb") as output, self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [*self._runtime, "run", f"--bundle={bundle}", name],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
            )

    def seen(self) -> str:
        """What the container read of its own groups, before anything else."""
        deadline = time.monotonic() + DEADLINE
        while "mon:" not in (text := self._output.read_text()) or not text.endswith("\n"):
            if self._process.poll() is not None:
                raise RuntimeError(f"{self.name} did not start: {self.errors()}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.name}: {self.errors()}")
            time.sleep(0.05)
        return text

    def errors(self) -> str:
        return self._errors.read_text(errors="replace")

    def pid(self) -> int:
        """As the runtime says. crun has no state of a container that has just begun to run."""
        deadline = time.monotonic() + DEADLINE
        while True:
            done = subprocess.run(
                [*self._runtime, "state", self.name], capture_output=True, check=False, timeout=DEADLINE
            )
            if done.returncode == 0:
                pid: int = json.loads(done.stdout)["pid"]
                return pid
            if time.monotonic() > deadline:
                raise TimeoutError(done.stderr.decode())
            time.sleep(0.05)

    def exec_command(self, *words: str) -> list[str]:
        """What brings a command into it."""
        return [*self._runtime, "exec", self.name, *words]

    def refused(self) -> str:
        """Wait for the runtime to give up; what it said."""
        assert self._process.wait(DEADLINE) != 0
        return self.errors()

    def finish(self) -> None:
        """Let the container's command end, and wait until the runtime has cleaned up and poststop is through."""
        if self._process.poll() is None:
            os.close(os.open(self._gate, os.O_WRONLY))
        assert self._process.wait(DEADLINE) == 0, self.errors()

    def close(self) -> None:
        if self._process.poll() is None:
            subprocess.run([*self._runtime, "kill", self.name, "KILL"], capture_output=True, check=False)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(10)
        self._process.kill()
        self._process.wait()


class Runtimes:
    """Starts containers, and ends at the end those that a failed test has left."""

    def __init__(self, hook: Hook, directory: Path) -> None:
        self._hook = hook
        self._directory = directory
        self._rootfs = make_rootfs(directory / "rootfs")
        self._containers: list[ForegroundContainer] = []

    def start(
        self,
        runtime: str,
        name: str,
        *,
        options: Sequence[str] = (),
        intel_rdt: Mapping[str, object] | None = None,
        annotations: Mapping[str, str] | None = None,
        before: str = "",
    ) -> ForegroundContainer:
        """`before`: a script that runs as a createRuntime hook in front of ours, with $pid and $id of the state."""
        bundle = self._directory / name
        (bundle / "gates").mkdir(parents=True)
        os.mkfifo(bundle / "gates" / "go")
        path, *arguments = self._hook.with_options(*options).command("hook")
        entry = {"path": path, "args": ["resctrl-mon-hook", *arguments], "env": ENVIRONMENT, "timeout": 60}
        hooks = {"createRuntime": [entry], "poststop": [entry]}
        place = path_of("", name, annotations or {})
        config = bundle_config(self._rootfs, ["/bin/cat", GROUPS, "/gates/go"], place, bundle / "gates")
        config |= {"hooks": hooks, "annotations": dict(annotations or {})}
        if intel_rdt is not None:
            config["linux"]["intelRdt"] = dict(intel_rdt)
        if before:
            hooks["createRuntime"] = [script(before), entry]
        (bundle / "config.json").write_text(json.dumps(config))
        container = ForegroundContainer(runtime, name, bundle)
        self._containers.append(container)
        return container

    def close(self) -> None:
        for container in self._containers:
            container.close()


def script(text: str) -> dict[str, object]:
    """A hook that is a shell script."""
    read = "state=$(cat); " + "".join(
        f'{name}=$(printf %s "$state" | sed \'s/.*"{name}": *"*\\([A-Za-z0-9-]*\\).*/\\1/\'); '
        for name in ("id", "pid")
    )
    return {"path": "/bin/sh", "args": ["sh", "-e", "-c", read + text], "env": ENVIRONMENT, "timeout": 60}
