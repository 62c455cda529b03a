# SPDX-License-Identifier: Apache-2.0
"""A node with Debian's Slurm that is set up as docs/jobs.md says.

The jobs of all situations run at the same time.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.jobs.conftest import BatchNode, read_section
from tests.jobs.slurm import Slurm
from tests.support.waiting import wait

FILES, COMMANDS = read_section("A batch system: Slurm")
PLUGSTACK = "/etc/slurm/plugstack.conf"
pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Situation:
    """A batch job that waits until it may go on, and what then becomes of it."""

    script: str = "true"
    options: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    """Ends the job from outside; the last word gets the job's ID."""
    jobs: int = 1
    runs: int = 1
    steps: int = 1
    """On all of its runs, with the batch script as one of them."""


SITUATIONS = {
    "fails": Situation("exit 7"),
    "has steps": Situation("srun -n2 true && srun -n32 true", ("--ntasks=32",), steps=3),
    "is an array": Situation(options=("--array=1-2",), jobs=2),
    "is cancelled": Situation(command=("scancel", "")),
    "exceeds its time": Situation(command=("scontrol", "update", "EndTime=now", "JobId=")),
    "exceeds its memory": Situation(
        "(head -c 200000000 /dev/zero; sleep 600) | tail", ("--mem=20",)
    ),
    "is requeued": Situation(
        command=("scontrol", "requeue", ""), options=("--requeue",), runs=2, steps=2
    ),
    "is a user's": Situation(options=("--uid=nobody",)),
}


@pytest.fixture(scope="module")
def slurm(node: BatchNode) -> Iterator[Slurm]:
    for name, text in FILES.items():
        if not name.endswith("slurm.conf"):
            file = node.directory / Path(name).name
            file.write_text(node.place(text), encoding="utf-8")
            file.chmod(0o755 if text.startswith("#!") else 0o644)
    (compiling,) = [command for command in COMMANDS if "cc " in command]
    node.shell(compiling)
    with closing(Slurm(node, node.place(FILES["/etc/slurm/slurm.conf"]))) as slurm:
        yield slurm


@pytest.fixture(scope="module")
def jobs(node: BatchNode, slurm: Slurm) -> dict[str, list[int]]:
    """The IDs of the jobs in each situation;
    each has used as many joules as its ID says, in its first run.
    """
    go = node.directory / "go"
    waiting = f"until [ -e {go} ]; do sleep 0.1; done"
    submitted = {
        name: slurm.submit(f"{waiting}\n{situation.script}", *situation.options)
        for name, situation in SITUATIONS.items()
    }
    for job in (job for ids in submitted.values() for job in ids):
        node.charge(f"slurm-{job}", job)
    for name, situation in SITUATIONS.items():
        if situation.command:
            *words, last = situation.command
            node.run(*words, f"{last}{submitted[name][0]}")
    go.touch()
    return submitted


@pytest.mark.parametrize("name", SITUATIONS)
def test_slurms_job_has_a_line_for_each_run_and_a_call_for_each_step_when_it(
    node: BatchNode, jobs: Mapping[str, list[int]], name: str
) -> None:
    situation = SITUATIONS[name]
    assert len(jobs[name]) == situation.jobs
    for job in jobs[name]:
        key = f"slurm-{job}"
        lines = node.await_lines(key, situation.runs)
        assert {(line["kind"], *line["unknown"]) for line in lines} == {("job",)}
        runs_as_nobody = "--uid=nobody" in situation.options
        user = "nobody" if runs_as_nobody else "root"
        assert [line["labels"] for line in lines] == [{"user": user}] * situation.runs
        assert [line["use"]["core_energy"] for line in lines] == [job, 0][: situation.runs]
        assert len([call for call in node.calls("assign") if key in call]) == situation.steps
    wait(lambda: not {f"oci-slurm-{job}" for job in jobs[name]} & node.hook.groups())


def test_slurms_job_without_an_rmid_runs_with_a_record_and_reconcile_brings_it_in(
    node: BatchNode, slurm: Slurm
) -> None:
    taken: list[Path] = []
    node.resctrl.control(do="settle")
    with suppress(OSError):
        while True:
            taken.append(node.hook.resctrl_root / "mon_groups" / f"taken-{len(taken)}")
            taken[-1].mkdir()
    taken.pop()
    (job,) = slurm.submit("sleep 600")
    key = f"slurm-{job}"
    wait(lambda: [failure["key"] for failure in node.hook.failures().values()] == [key])
    wait(
        lambda: (
            f"job {job} is not monitored: resctrl-mon-hook: no RMID is left"
            in (slurm.directory / "slurmd.log").read_text()
        )
    )
    for group in taken:
        group.rmdir()
    node.resctrl.control(do="settle")
    assert node.hook.ask("reconcile").status == 0
    node.charge(key, job)
    node.run("scancel", str(job))
    (line,) = node.await_lines(key, 1)
    assert line["use"]["core_energy"] == job


def test_parent_of_a_prolog_is_slurmd(node: BatchNode, slurm: Slurm) -> None:
    node.run("srun", "true")
    assert (slurm.directory / "parent-of-prolog").read_text() == "slurmd\n"


@pytest.mark.parametrize(("word", "is_started"), [("optional", True), ("required", False)])
def test_submit_host_without_the_plugin_starts_a_job_only_if_that_is_optional(
    node: BatchNode, slurm: Slurm, tmp_path: Path, word: str, is_started: bool
) -> None:
    shutil.copy(slurm.directory / "slurm.conf", tmp_path)
    _, _, rest = FILES[PLUGSTACK].partition(" ")
    (tmp_path / "plugstack.conf").write_text(f"{word} {rest}", encoding="utf-8")
    environment = {**node.environment, "SLURM_CONF": str(tmp_path / "slurm.conf")}
    done = subprocess.run(
        ["srun", "true"], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode == 0) == is_started
    assert "Dlopen of plugin file failed" in done.stderr
