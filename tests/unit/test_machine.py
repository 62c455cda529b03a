# SPDX-License-Identifier: Apache-2.0
"""What is asked of the machine, and what is said where it forbids a program."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

from hook.node import machine, programs
from hook.node.machine import Interpreter


def program(path: Path, text: str = "exit 0") -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_a_program_that_succeeds_has_no_problem(tmp_path: Path) -> None:
    ended = programs.run([program(tmp_path / "x", "cat; echo $PWD $HOME")], stdin="hello\n")
    assert (ended.problem, ended.output) == (None, "hello\n/\n")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("echo first >&2; echo last >&2; exit 3", "exit status 3: last"),
        ("exit 3", "exit status 3: no error message"),
        ("kill -9 $$", "exit status -9: no error message"),
    ],
)
def test_a_program_that_fails_has_a_problem(tmp_path: Path, text: str, problem: str) -> None:
    assert programs.run([program(tmp_path / "x", text)]).problem == problem


def test_a_program_that_takes_too_long_has_a_problem(tmp_path: Path) -> None:
    assert programs.run([program(tmp_path / "x", "exec sleep 1000")], seconds=0.3).problem == "timed out after 0.3 s"


def test_a_missing_program_cannot_start(tmp_path: Path) -> None:
    assert programs.run([str(tmp_path / "x")]).problem == "cannot start: ENOENT"


def test_targets_are_found_by_their_programs(tmp_path: Path) -> None:
    top = str(tmp_path)
    assert machine.find_targets(top) == []
    program(tmp_path / "usr/bin/podman")
    assert machine.find_targets(top) == ["podman"]
    (tmp_path / "usr/bin/crio").mkdir()
    assert machine.find_targets(top) == ["podman"]
    program(tmp_path / "usr/local/bin/k3s")
    assert machine.find_targets(top) == ["kubernetes", "podman"]
    assert programs.find("k3s", top) == "/usr/local/bin/k3s"


def test_ask_interpreter_returns_version_and_tag() -> None:
    tag = sys.implementation.cache_tag
    assert machine.ask_interpreter(sys.executable) == Interpreter(
        sys.executable, sys.version_info[:2], tag, importlib.util.MAGIC_NUMBER
    )


# --- What forbids


@pytest.fixture
def path(tmp_path: Path) -> str:
    return program(tmp_path / "x")


def test_without_a_blocker_there_is_no_remedy(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setattr(machine, "read_selinux_mode", lambda: None)
    monkeypatch.setattr(machine, "has_fapolicyd", lambda: False)
    assert machine.list_blockers(path) == ""
    assert machine.find_label_problem(path) is None


def test_fapolicyd_has_a_remedy(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setattr(machine, "has_fapolicyd", lambda: True)
    assert f"fapolicyd-cli --file add {path} && fapolicyd-cli --update" in machine.list_blockers(path)


@pytest.mark.parametrize(
    ("mode", "found", "is_wrong"),
    [
        ("enforcing", "user_home_t", True),
        ("enforcing", "unlabeled_t", True),
        ("enforcing", "bin_t", False),
        ("enforcing", "container_runtime_exec_t", False),
        ("enforcing", None, False),
        ("permissive", "user_home_t", False),
        (None, "user_home_t", False),
    ],
)
def test_a_label_that_selinux_blocks_has_a_remedy(
    monkeypatch: pytest.MonkeyPatch, path: str, mode: str | None, found: str | None, is_wrong: bool
) -> None:
    monkeypatch.setattr(machine, "read_selinux_mode", lambda: mode)
    monkeypatch.setattr(machine, "read_label", lambda _path: found)
    said = machine.find_label_problem(path)
    assert (said is not None) is is_wrong
    assert said is None or f"{path} has type {found}" in said
    assert ("restorecon" in machine.list_blockers(path)) is (mode == "enforcing")


def test_a_label_is_read_from_the_file(path: str) -> None:
    assert machine.read_label(path) is None
    try:
        os.setxattr(path, "security.selinux", b"system_u:object_r:bin_t:s0\0")
    except OSError as error:
        pytest.skip(f"no label can be set: {error}")
    assert machine.read_label(path) == "bin_t"
