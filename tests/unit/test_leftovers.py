# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import leftovers


@contextmanager
def sleeper(mark: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has this mark in its environment, once that can be read:
    a moment after exec.
    """
    with subprocess.Popen(["sleep", "1000"], env={leftovers.MARK: mark}) as process:
        try:
            while not Path(f"/proc/{process.pid}/environ").read_bytes():
                pass
            yield process
        finally:
            process.kill()


def test_what_a_run_leaves_is_named_until_it_is_gone_and_nothing_of_other_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever checkout they are of, and whether or not they still run."""
    cgroups = tmp_path / "sys/fs/cgroup"
    places = tmp_path / "run", tmp_path / "run/runc"
    for run in ("ours-1", "another-1"):
        for made in (
            cgroups / f"rmh-{run}-7/crio-1.scope",
            places[0] / f"rmh-{run}-file",
            places[1] / run,
        ):
            made.mkdir(parents=True)
        (places[1] / run / "state.json").write_text(f'{{"bundle": "/tmp/rmh-{run}-x/bundle"}}')
    monkeypatch.setenv(leftovers.MARK, "ours-1")
    monkeypatch.setattr(leftovers, "SECONDS", 0)
    monkeypatch.setattr(leftovers, "PLACES", tuple(map(str, places)))
    walk = os.walk
    monkeypatch.setattr(os, "walk", lambda top: walk(f"{tmp_path}{top}"))
    left = [
        f"cgroup: {cgroups}/rmh-ours-1-7",
        f"cgroup: {cgroups}/rmh-ours-1-7/crio-1.scope",
        f"file: {places[0]}/rmh-ours-1-file",
        f"file: {places[1]}/ours-1",
    ]
    assert leftovers.find_left() == left
    with sleeper("another-1"), sleeper("ours-1") as process:
        assert leftovers.find_left() == sorted([*left, f"process: {process.pid} sleep 1000"])
    assert leftovers.find_left() == left
