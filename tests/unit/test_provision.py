# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests import provision

PINS = ["tool==1"]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[list[str]]]:
    """A machine as told; the commands that would have been run, each of which answers as `answers` says."""

    def tell(
        present: Sequence[str] = (),
        uid: int = 0,
        debian: bool = True,
        answers: Callable[[Sequence[str]], str] | None = None,
    ) -> list[list[str]]:
        ran: list[list[str]] = []

        def run(command: Sequence[str], _environment: dict[str, str] | None = None) -> str:
            ran.append(list(command))
            return answers(command) if answers else ""

        monkeypatch.setattr(provision, "_present", present.__contains__)
        monkeypatch.setattr(provision, "_is_debian", lambda: debian)
        monkeypatch.setattr(provision, "_cannot_open", lambda _device: "")
        monkeypatch.setattr(provision, "_run", run)
        monkeypatch.setattr(provision, "_venv", lambda *_: Path("python"))
        monkeypatch.setattr(os, "geteuid", lambda: uid)
        return ran

    return tell


@pytest.mark.parametrize("group", ["dev", "faults"])
def test_the_requirements_are_the_dependency_group(group: str) -> None:
    tomllib = pytest.importorskip("tomllib", reason="came with Python 3.11")
    text = (provision.ROOT / "pyproject.toml").read_text(encoding="utf-8")
    pins = provision.requirements(text, group)
    assert pins == tomllib.loads(text)["dependency-groups"][group]
    assert all("==" in pin for pin in pins)


def test_only_what_is_missing_is_installed_and_lists_are_refreshed_only_if_apt_needs_that(
    machine: Callable[..., list[list[str]]], capsys: pytest.CaptureFixture[str]
) -> None:
    ran = machine(present=provision.TEST)
    provision.ensure(apt=provision.TEST)
    assert (ran, capsys.readouterr().err) == ([], "")
    outcomes = iter(["E: Unable to locate package runc", "", ""])
    ran = machine(present=[it for it in provision.TEST if it != "runc"], answers=lambda _command: next(outcomes))
    provision.ensure(apt=provision.TEST)
    assert ["update" if "update" in command else command[-1] for command in ran] == ["runc", "update", "runc"]
    assert {"--no-install-recommends", "--no-remove"} <= set(ran[0])
    assert capsys.readouterr().err.splitlines()[0] == "provision: installing Debian packages: runc"


# --- the venv, with a maker that makes only what the stamp looks at


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    directory = tmp_path / ".venv"
    (directory / "bin").mkdir(parents=True)
    (directory / "bin" / "python").symlink_to(sys.executable)
    (directory / "stamp").write_text(provision._stamp(directory, PINS), encoding="ascii")
    return directory


@pytest.mark.parametrize(
    ("spoil", "pins"),
    [
        (lambda venv: venv, ["tool==2"]),
        (lambda venv: (venv / "stamp").unlink(), PINS),
        (lambda venv: (venv / "bin/python").unlink(), PINS),
        (lambda venv: venv.rename(venv.with_name("moved")), PINS),
    ],
    ids=["other pins", "half made", "no interpreter", "moved"],
)
def test_a_venv_is_current_until_it_changes(venv: Path, spoil: Callable[[Path], Path | None], pins: list[str]) -> None:
    assert provision._is_current(venv, PINS)
    place = spoil(venv) or venv
    assert not provision._is_current(place, pins)
