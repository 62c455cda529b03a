# SPDX-License-Identifier: Apache-2.0
"""The shipped file as a process, with the stdin, arguments,
environment and cwd that a runtime gives it.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.support.cgroups import place_in_pod, remove_of_pods

DIST = Path(__file__).resolve().parents[2] / "dist"
PYZ = DIST / "resctrl-mon-hook.pyz"
NATIVE = DIST / f"resctrl-mon-hook-{platform.machine()}"
FORMS = {"pyz": PYZ, "native": NATIVE}
FORM = "RESCTRL_MON_HOOK_FORM"
"""Names in the environment the form that is tested, also for other processes and guests;
`pytest --form` sets it.
"""
STATES = Path(__file__).resolve().parents[1] / "states"
UID = "87a3fb58-4084-4186-9c0e-93cf8c32e2ce"
# Only to end what hangs: a hundred hooks at once on an emulated machine take their time.
DEADLINE = 300
Task = subprocess.Popen[bytes]
PATIENT = "--lock-timeout=60"
"""For tests on a machine that is slow or busy:
what they are about is not how long a lock may take.
"""


def shipped() -> Path:
    """Return the file under test. A test that is of one form only names PYZ or NATIVE."""
    return FORMS[os.environ.get(FORM, "pyz")]


@dataclass(frozen=True)
class Outcome:
    """What became of one run of the hook."""

    status: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Hook:
    """The hook on one resctrl and one run directory.

    `python`: started by it instead of by the file's first line.
    """

    resctrl_root: Path
    run_dir: Path
    python: Sequence[str] = ()
    options: Sequence[str] = (PATIENT,)
    wrapper: Sequence[str] = field(default=())
    program: Path | None = None  # None: the file under test

    def with_options(self, *options: str) -> Hook:
        """The same with further options."""
        return replace(self, options=(*self.options, *options))

    def command(self, verb: str) -> list[str]:
        places = [f"--resctrl-root={self.resctrl_root}", f"--run-dir={self.run_dir}"]
        return [
            *self.wrapper,
            *self.python,
            str(self.program or shipped()),
            verb,
            *places,
            *self.options,
        ]

    def start(
        self,
        state: Mapping[str, object] | bytes,
        verb: str = "hook",
        env: Mapping[str, str] | None = None,
        cwd: Path | str = "/",
    ) -> Task:
        """Start it without waiting; `state` is all of its stdin,
        and its environment is empty unless given.
        """
        process = subprocess.Popen(
            self.command(verb),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(env or {}),
            cwd=cwd,
        )
        assert process.stdin is not None
        try:
            process.stdin.write(state if isinstance(state, bytes) else json.dumps(state).encode())
            process.stdin.close()
        except BrokenPipeError:
            pass
        process.stdin = None
        return process

    def __call__(
        self,
        state: Mapping[str, object] | bytes,
        verb: str = "hook",
        env: Mapping[str, str] | None = None,
        cwd: Path | str = "/",
    ) -> Outcome:
        """Run it to its end."""
        return finish(self.start(state, verb, env, cwd))

    def open(self, verb: str, *words: str, **streams: Any) -> Task:  # noqa: ANN401
        """Start a command for people, without the hook's options and with nothing on stdin."""
        pipes = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "env": {},
        }
        return subprocess.Popen(
            [*replace(self, options=()).command(verb), *words], **{**pipes, **streams}
        )

    def ask(self, verb: str, *words: str) -> Outcome:
        """Run one to its end."""
        return finish(self.open(verb, *words))

    def answer(self, verb: str, *words: str) -> Any:  # noqa: ANN401  JSON
        """What one that succeeds answers in JSON."""
        outcome = self.ask(verb, *words, "--json")
        assert (outcome.status, outcome.stderr) == (0, "")
        return json.loads(outcome.stdout)

    def groups(self) -> set[str]:
        """Every mon_group there is, as `<ctrl_group>/<name>`,
        or `<name>` in the root ctrl_group.
        """
        places = [("", self.resctrl_root / "mon_groups")]
        places += [(p.parent.name + "/", p) for p in self.resctrl_root.glob("*/mon_groups")]
        return {prefix + entry.name for prefix, place in places for entry in place.iterdir()}

    def tasks(self, group: str) -> set[int]:
        """The tasks of a group that `groups` names."""
        ctrl_group, _, name = group.rpartition("/")
        text = (self.resctrl_root / ctrl_group / "mon_groups" / name / "tasks").read_text()
        return {int(line) for line in text.split()}

    def key(self, key: str) -> Any:  # noqa: ANN401  JSON
        """What is recorded of a key that has not ended, or None."""
        state = self.recorded(key)
        return state if state and not state["completed_at"] else None

    def recorded(self, key: str) -> Any:  # noqa: ANN401  JSON
        """What is recorded of a key, completed or not, or None."""
        path = self.run_dir / "groups" / f"{key}.json"
        return json.loads(path.read_text()) if path.is_file() else None

    def view(self, key: str) -> Path:
        """Where consumers read a key, whose view is made now."""
        outcome = self.ask("view", "--once")
        assert outcome == Outcome(0, "", ""), outcome
        return self.run_dir / "mon_groups" / key

    def failures(self) -> dict[str, Any]:
        """The records of what is not monitored, by container."""
        place = self.run_dir / "unmonitored"
        return (
            {p.stem: json.loads(p.read_text()) for p in place.glob("*.json")}
            if place.exists()
            else {}
        )

    def reasons(self) -> dict[str, str]:
        """The reason of each record, by container."""
        return {container: record["reason"] for container, record in self.failures().items()}

    def leftovers(self) -> set[str]:
        """Every file about a key or a container in the run directory,
        but for what is kept of completed keys.
        """
        parts = ("groups", "members", "locks", "unmonitored", "building")
        files = {f"{part}/{p.name}" for part in parts for p in self.run_dir.glob(f"{part}/*")}
        files |= {f"{part}/{p.name}" for part in parts for p in self.run_dir.glob(f"{part}/.*")}
        return {name for name in files if not is_completed(self.run_dir / name)}

    def assert_clean(self) -> None:
        left = self.groups(), self.leftovers()
        assert left == (set(), set()), left


def is_completed(path: Path) -> bool:
    """Whether a file holds what is kept of a completed key."""
    try:
        return bool(json.loads(path.read_text())["completed_at"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def finish(process: Task) -> Outcome:
    """Wait for a hook that was started."""
    try:
        stdout, stderr = process.communicate(timeout=DEADLINE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    return Outcome(process.returncode, stdout.decode(), stderr.decode())


@contextmanager
def task() -> Iterator[Task]:
    """A process that does nothing, to stand for a container's init."""
    process = subprocess.Popen(["sleep", "infinity"], stdin=subprocess.DEVNULL)
    try:
        yield process
    finally:
        end(process)


def end(process: Task) -> None:
    """Kill a task and reap it: afterwards its pid is nobody's."""
    process.kill()
    process.wait()
    remove_of_pods()


def created(container: str, pid: int, **annotations: str) -> dict[str, object]:
    """A state as crun gives it at createRuntime;
    `pod_uid=...` stands for a container of a pod of Kubernetes'.

    No annotation is believed of a process that is in no cgroup of a pod:
    such a process is moved into one.
    """
    if "pod_uid" in annotations:
        place_in_pod(pid, annotations["pod_uid"])
    state: dict[str, object] = {
        "ociVersion": "1.0",
        "id": container,
        "pid": pid,
        "bundle": "/",
        "status": "created",
    }
    return {**state, "annotations": _annotations(annotations)}


def stopped(container: str, **annotations: str) -> dict[str, object]:
    """A state as runc gives it at poststop."""
    state: dict[str, object] = {
        "ociVersion": "1.2.1",
        "id": container,
        "bundle": "/",
        "status": "stopped",
    }
    return {**state, "annotations": _annotations(annotations)}


def _annotations(said: Mapping[str, str]) -> dict[str, str]:
    names = {"pod_uid": "io.kubernetes.pod.uid"}
    return {names.get(name, name): value for name, value in said.items()}


def snapshot(*directories: Path) -> set[str]:
    """Every path below these directories, to see that nothing was made there."""
    return {
        os.path.join(at, name)
        for top in directories
        for at, dirs, files in os.walk(top)
        for name in dirs + files
    }
