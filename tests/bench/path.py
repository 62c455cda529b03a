# SPDX-License-Identifier: Apache-2.0
"""How far a reader has to go: the files of hook/ that one run enters, and how often its calls lead to another file.

    python3 build.py bench path

On the model of resctrl with five counters (root, /dev/fuse). A run enters a file when it calls one of its functions
(sys.setprofile), but for models and validators. Of the changes of file each place that calls counts once, as a reader
reads a loop once.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import posix
import runpy
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn

HOOK = str(Path(__file__).resolve().parents[2] / "hook") + os.sep
MODELS = ("models_compiled.py", "validation.py")


def main() -> int:
    from tests.bench.nodes import created, model_node, stopped  # noqa: PLC0415  not in the program's own process
    from tests.resctrlfs.model import Knobs  # noqa: PLC0415  as above
    from tests.support.hook import end, task  # noqa: PLC0415  as above

    with model_node(Knobs(l3_domains=1, packages=1, perf=False)) as node, task() as first, task() as further:
        key, one, two = node.new_key(), node.new_container(), node.new_container()
        print(f"{'':27} files changes")
        for name, verb, state, ended in (
            ("createRuntime, first", "hook", created(one, first.pid, key), None),
            ("createRuntime, further", "hook", created(two, further.pid, key), None),
            ("reconcile", "reconcile", "", None),
            ("metrics", "metrics", "", None),
            ("poststop, not the last", "hook", stopped(two, key), further),
            ("poststop, last", "hook", stopped(one, key), first),
        ):
            if ended is not None:
                end(ended)
            files = _follow([verb, f"--resctrl-root={node.root}", f"--run-dir={node.run_dir}"], state)
            changes = sum(former != following for former, following in zip(files, files[1:]))
            print(f"{name:27} {len(set(files)):5} {changes:7}")
    return 0


def _follow(arguments: list[str], state: str) -> list[str]:
    """Run the program on its sources in a process of its own; returns the files that its calls lead to."""
    read, write = os.pipe()
    os.write(write, state.encode())
    os.close(write)  # the state is there when a hook starts
    command = [sys.executable, "-m", "tests.bench.path", "--run", *arguments]
    with open(read, "rb") as stdin:
        done = subprocess.run(command, stdin=stdin, capture_output=True, check=False, timeout=300)
    if done.returncode:
        raise SystemExit(done.stderr.decode())
    calls = dict.fromkeys(map(tuple, json.loads(done.stderr.splitlines()[-1])))
    return [file for _, _, file in calls]


def run(arguments: list[str]) -> None:
    """Be the program, from hook/__main__.py on; when it exits, its calls are the last line of stderr, as JSON.

    Each call: the file and the line that it comes from, and the file that it leads to.
    """
    from pyz import COMPILED  # noqa: PLC0415  only here

    for path in COMPILED:
        name = path.removesuffix(".py").replace("/", ".")
        sys.modules[name] = importlib.import_module(name + "_compiled")
    calls: list[tuple[str, int, str]] = []
    really_exit = posix._exit

    def note(frame: FrameType, event: str, _argument: object) -> None:
        name, is_function = frame.f_code.co_filename, frame.f_code.co_flags & inspect.CO_OPTIMIZED
        if event == "call" and is_function and name.startswith(HOOK) and not _is_of_models(frame) and frame.f_back:
            calls.append((frame.f_back.f_code.co_filename, frame.f_back.f_lineno, name[len(HOOK) :]))

    def show_and_exit(status: int) -> NoReturn:
        sys.setprofile(None)
        os.write(2, b"\n" + json.dumps(calls).encode())
        really_exit(status)

    posix._exit = os._exit = show_and_exit
    sys.argv = ["hook", *arguments]
    sys.setprofile(note)
    runpy.run_module("hook", run_name="__main__")


def _is_of_models(frame: FrameType | None) -> bool:
    """Whether a call is a validation, or made by one."""
    while frame is not None:
        if frame.f_code.co_filename.endswith(MODELS):
            return True
        frame = frame.f_back
    return False


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        sys.path.append("packaging")
        run(sys.argv[2:])
    sys.exit(main())
