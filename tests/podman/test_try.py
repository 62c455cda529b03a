# SPDX-License-Identifier: Apache-2.0
"""Each example on docs/try.md works in the order of the page, and prints what the page shows.

The demo ends well.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.containers import REPOSITORY, Lab, missing
from tests.support.hook import DEADLINE
from tests.support.waiting import wait
from tests.unit.documents import blocks, page

VENV = ".venv-demo/bin/python"


@pytest.fixture
def lab() -> Iterator[Lab]:
    if reason := missing():
        pytest.skip(reason)
    with closing(Lab()) as lab:
        lab.import_image("busybox")
        yield lab


def start(lab: Lab, directory: Path, text: str) -> subprocess.Popen[str]:
    """Start commands of the page as the test's own: in its directory, on the lab's Podman."""
    program = directory / "bin" / "podman"
    if not program.exists():
        program.parent.mkdir()
        podman, *places = lab.podman_command()
        program.write_text(f'#!/bin/sh\nexec {shutil.which(podman)} {shlex.join(places)} "$@"\n')
        program.chmod(0o755)
    text = (
        text.replace("sudo ", "")
        .replace("/run/try", str(directory / "try"))
        .replace(VENV, sys.executable)
    )
    text = text.replace(" --rm ", f" {shlex.join(lab.place)} --rm ")
    environment = {
        **os.environ,
        **lab.environment,
        "PATH": f"{program.parent}:{lab.environment['PATH']}",
    }
    return subprocess.Popen(
        ["sh", "-ec", text],
        cwd=REPOSITORY,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def run(lab: Lab, directory: Path, text: str) -> str:
    with start(lab, directory, text) as shell:
        output, _ = shell.communicate(timeout=DEADLINE)
    assert shell.returncode == 0, text
    return output


def fields(table: str) -> list[dict[str, str]]:
    """The lines below the head of a table, without what differs from run to run."""
    lines = [line.split() for line in table[table.index("NAME") :].splitlines()]
    varying = {"KEY", "CTRL_GROUPS", "AGE", "END", "SECONDS"}
    return [
        {name: value for name, value in zip(lines[0], line) if name not in varying}
        for line in lines[1:]
    ]


def test_examples_work_in_their_order_and_print_what_is_shown(lab: Lab, tmp_path: Path) -> None:
    demo, mount, hooks, job, live, kill, completed, history, by_hand, end = blocks(
        page("docs/try.md")
    )
    assert demo.strip() in page("README.md")

    with start(lab, tmp_path, mount.replace(f"sudo {VENV}", f"exec {VENV}")) as model:
        try:
            assert model.stdout is not None
            assert model.stdout.readline() == "ready\n"
            run(lab, tmp_path, hooks)
            run(lab, tmp_path, job)
            check(lab, tmp_path, live)
            run(lab, tmp_path, kill)
            wait((tmp_path / "try" / "history.jsonl").exists)
            check(lab, tmp_path, completed)
            check(lab, tmp_path, history)
            printed = run(lab, tmp_path, by_hand)
            assert re.fullmatch(r"\d+\n", printed)
            assert list((tmp_path / "try" / "resctrl" / "mon_groups").iterdir()) == []
        finally:
            model.terminate()
    run(lab, tmp_path, end)


def check(lab: Lab, directory: Path, block: str) -> None:
    """Compare what a command prints with what the page shows below it."""
    command, _, shown = block.removeprefix("$ ").partition("\n")
    printed = run(lab, directory, command)
    assert fields(printed) == fields(shown)
    assert printed.startswith(shown.partition("\n\n")[0].partition("NAME")[0])


def test_demo_ends_well_and_clean() -> None:
    """It has a TMPDIR that Podman does not find too long,
    so that what the demo leaves can be seen.
    """
    if reason := missing():
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix="rmh-t-", dir="/tmp") as directory:
        done = subprocess.run(
            [sys.executable, "-m", "tests.demo"],
            cwd=REPOSITORY,
            env={**os.environ, "TMPDIR": directory},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        assert os.listdir(directory) == []
    lines = done.stdout.splitlines()
    assert len(lines) <= 48
    assert max(map(len, lines)) <= 120
    assert "\033" not in done.stdout
    assert len(re.findall(r"put in as runc:\[2:INIT\]", done.stdout)) == 5 + 4 + 2
