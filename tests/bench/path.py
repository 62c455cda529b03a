# SPDX-License-Identifier: Apache-2.0
"""How far a reader has to go: the files of hook/ that one run enters, and how often its calls lead to another file.

    python3 -m tests.bench.path [--files]

A pod of one container starts and ends on the model of resctrl, with five counters; in between come an idle reconcile
and one `metrics`. A run enters a file when one of its functions is called (sys.setprofile); models and their validators
do not count. It changes file when a function is called that is in another file than the one called before. `once`
counts each place that calls once, as a reader reads a loop once; `all` counts each call, and so grows with counters and
processes. `--files`: names the files, too. Needs root and /dev/fuse, as the model does.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import FrameType

HOOK = str(Path(__file__).resolve().parents[2] / "hook") + os.sep
MODELS = ("models_compiled.py", "node/models_compiled.py", "validation.py")
HOOKS = ("createRuntime", "poststop")

Call = tuple[str, int, str]
"""A call: the file and the line that it comes from, and the file that it leads to."""


def main(arguments: Sequence[str]) -> int:
    from tests.bench import plain_node  # noqa: PLC0415  not in the program's own process
    from tests.resctrlfs.model import Knobs  # noqa: PLC0415  as above
    from tests.support.hook import end, task  # noqa: PLC0415  as above

    with plain_node.model_node(Knobs(l3_domains=1, packages=1, perf=False)) as node, task() as init:
        key, container = node.new_key(), node.new_container()
        states = {
            "createRuntime": plain_node.created(container, init.pid, key),
            "poststop": plain_node.stopped(container, key),
        }
        print(f"{'':13} {'files':>5} {'once':>5} {'all':>5}")
        for step in ("createRuntime", "reconcile", "metrics", "poststop"):
            if step == "poststop":
                end(init)
            places = [f"--resctrl-root={node.root}", f"--run-dir={node.run_dir}"]
            calls = _follow(["hook" if step in states else step, *places], states.get(step, ""))
            files = sorted({to for _, _, to in calls})
            print(f"{step:13} {len(files):5} {_changes(dict.fromkeys(calls)):5} {_changes(calls):5}")
            if "--files" in arguments:
                print(*(f"    {name}" for name in files), sep="\n")
    return 0


def _changes(calls: Iterable[Call]) -> int:
    way = [to for _, _, to in calls]
    return sum(one != other for one, other in zip(way, way[1:]))


def _follow(arguments: Sequence[str], state: str) -> list[Call]:
    """Run the program on its sources in a process of its own; returns its calls of functions of hook/."""
    read, write = os.pipe()
    os.write(write, state.encode())
    os.close(write)  # the state is there when a hook starts
    command = [sys.executable, "-m", "tests.bench.path", "--run", *arguments]
    with open(read, "rb") as stdin:
        done = subprocess.run(command, stdin=stdin, capture_output=True, check=False, timeout=300)
    if done.returncode:
        raise SystemExit(done.stderr.decode())
    return [(place, line, to) for place, line, to in json.loads(done.stderr.splitlines()[-1])]


def run(arguments: list[str]) -> int:
    """Be the program; at the end its calls are the last line of stderr, as JSON."""
    for name in ("hook.models", "hook.node.models", "hook.cli.options"):
        sys.modules[name] = importlib.import_module(name + "_compiled")
    from hook import entry  # noqa: PLC0415  after the models took their place

    calls: list[Call] = []

    def note(frame: FrameType, event: str, _argument: object) -> None:
        name, is_function = frame.f_code.co_filename, frame.f_code.co_flags & inspect.CO_OPTIMIZED
        if event == "call" and is_function and name.startswith(HOOK) and not _is_of_models(frame) and frame.f_back:
            calls.append((frame.f_back.f_code.co_filename, frame.f_back.f_lineno, name[len(HOOK) :]))

    sys.setprofile(note)
    try:
        status = entry.dispatch(arguments)
    finally:
        sys.setprofile(None)
    os.write(2, b"\n" + json.dumps(calls).encode())
    return status


def _is_of_models(frame: FrameType | None) -> bool:
    """Whether a call is a validation, or made by one."""
    while frame is not None:
        if frame.f_code.co_filename.endswith(MODELS):
            return True
        frame = frame.f_back
    return False


if __name__ == "__main__":
    sys.exit(run(sys.argv[2:]) if sys.argv[1:2] == ["--run"] else main(sys.argv[1:]))
