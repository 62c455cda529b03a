# SPDX-License-Identifier: Apache-2.0
"""The verbs for people, as the shipped file: beside hooks that run, through pipes and on a terminal."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from tests import provision
from tests.support import interpreters
from tests.support.hook import DEADLINE, UID, Hook, Task, created, shipped
from tests.support.interpreters import Interpreter


@pytest.mark.parametrize("verb", [["list"], ["show", "c1"], ["top"], ["metrics"], ["reconcile"], ["watch"]])
def test_who_is_not_root_is_told_to_be(hook: Hook, init: Task, verb: list[str]) -> None:
    with tempfile.TemporaryDirectory(dir=provision.find_scratch()) as place:  # the tests' own directories are root's
        Path(place).chmod(0o755)
        program = Path(shutil.copy(shipped(), place))
        program.chmod(0o755)
        other = Hook(hook.resctrl_root, Path(place) / "run", options=())
        other(created("c1", init.pid))
        where = [f"--run-dir={other.run_dir}", f"--resctrl-root={place}"]  # nobody but root sees the model
        command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", str(program), *verb, *where]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=DEADLINE, env={})
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "run it as root" in done.stderr


@pytest.mark.form("pyz")
@pytest.mark.parametrize("python", interpreters.oldest_and_newest(), ids=lambda python: str(python.minor))
def test_every_python_gives_the_same_answers(hook: Hook, init: Task, python: Interpreter) -> None:
    hook(created("c1", init.pid, pod_uid=UID))
    hook(created("c2", 2**31 - 1))
    other = replace(hook, python=[str(python.path), "-IS"])
    for verb in (["list"], ["list", "--json"], ["show", "c1"], ["metrics"], ["top", "--interval=0.01", "--json"]):
        first, second = (it.ask(*verb) for it in (hook, other))
        assert (second.status, second.stderr) == (0, "")
        assert without_times(second.stdout) == without_times(first.stdout)
    assert other.ask("list", "--nonsense") == hook.ask("list", "--nonsense")


def without_times(text: str) -> str:
    """Nor with the padding of a number that has one more digit by now."""
    return re.sub(r" *[0-9][0-9.:TZ-]*[smh]? *", "0", text.replace(UID, "key"))
