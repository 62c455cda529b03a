"""What is asked of the machine, and what is said where it forbids a program."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

from hook.host import machine
from hook.host.machine import Interpreter


def program(path: Path, text: str = "exit 0") -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_a_program_that_ends_well(tmp_path: Path) -> None:
    ended = machine.run([program(tmp_path / "x", "cat; echo $PWD $HOME")], stdin="hello\n")
    assert (ended.problem, ended.output) == (None, "hello\n/\n")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("echo first >&2; echo last >&2; exit 3", "exit status 3: last"),
        ("exit 3", "exit status 3: it does not say why"),
        ("kill -9 $$", "exit status -9: it does not say why"),
        ("exec sleep 100", "it has not ended after 0 s"),
    ],
)
def test_a_program_that_does_not(tmp_path: Path, text: str, problem: str) -> None:
    assert machine.run([program(tmp_path / "x", text)], seconds=0.3).problem == problem


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    assert machine.run([str(tmp_path / "x")]).problem == "No such file or directory: ENOENT"


def test_what_runs_containers_is_found_by_its_programs(tmp_path: Path) -> None:
    top = str(tmp_path)
    assert machine.targets(top) == []
    program(tmp_path / "usr/bin/podman")
    assert machine.targets(top) == ["podman"]
    (tmp_path / "usr/bin/crio").mkdir()
    assert machine.targets(top) == ["podman"]
    program(tmp_path / "usr/local/bin/k3s")
    assert machine.targets(top) == ["kubernetes", "podman"]
    assert machine.program("k3s", top) == "/usr/local/bin/k3s"


def test_an_interpreter_tells_what_it_is() -> None:
    tag = sys.implementation.cache_tag
    assert machine.interpreter(sys.executable) == Interpreter(
        sys.executable, sys.version_info[:2], tag, importlib.util.MAGIC_NUMBER
    )


# --- What forbids


@pytest.fixture
def path(tmp_path: Path) -> str:
    return program(tmp_path / "x")


def test_where_nothing_forbids_nothing_is_said(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setattr(machine, "selinux", lambda: None)
    monkeypatch.setattr(machine, "has_fapolicyd", lambda: False)
    assert machine.why_forbidden(path) == ""
    assert machine.mislabelled(path) is None


def test_fapolicyd(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setattr(machine, "has_fapolicyd", lambda: True)
    assert f"fapolicyd-cli --file add {path} && fapolicyd-cli --update" in machine.why_forbidden(path)


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
def test_selinux(
    monkeypatch: pytest.MonkeyPatch, path: str, mode: str | None, found: str | None, is_wrong: bool
) -> None:
    monkeypatch.setattr(machine, "selinux", lambda: mode)
    monkeypatch.setattr(machine, "label", lambda _path: found)
    said = machine.mislabelled(path)
    assert (said is not None) is is_wrong
    assert said is None or f"{path} is {found}" in said
    assert ("restorecon" in machine.why_forbidden(path)) is (mode == "enforcing")


def test_a_label_is_read_from_the_file(path: str) -> None:
    assert machine.label(path) is None
    try:
        os.setxattr(path, "security.selinux", b"system_u:object_r:bin_t:s0\0")
    except OSError as error:
        pytest.skip(f"no label can be set: {error}")
    assert machine.label(path) == "bin_t"
