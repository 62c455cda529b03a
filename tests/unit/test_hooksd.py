# SPDX-License-Identifier: Apache-2.0
"""hooks.d as its readers have it: what a file must hold, and in which order files count."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hook.node import hooksd

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = "/bin/true"


def content(when: object = None, **changes: object) -> dict[str, Any]:
    hook = {"path": PROGRAM, "args": ["true"]}
    when = {"always": True} if when is None else when
    return {"version": "1.0.0", "hook": hook, "when": when, "stages": ["poststop"], **changes}


def write(directory: Path, name: str, text: object) -> Path:
    directory.mkdir(exist_ok=True)
    path = directory / name
    path.write_text(text if isinstance(text, str) else json.dumps(text))
    return path


# --- What a file must hold


def test_a_valid_file_has_no_problem(tmp_path: Path) -> None:
    entry = hooksd.read_entry(str(write(tmp_path, "a.json", content())))
    assert (entry.problem, entry.remark) == (None, None)
    assert entry.file is not None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "not JSON"),
        ("{", "Expecting"),
        ("[]", "all of it"),
        (content(version="2.0.0"), "version"),
        (content(hook={}), "hook.path"),
        (content(hook={"path": ""}), "hook.path"),
        (content(hook={"path": PROGRAM, "timeout": "60"}), "hook.timeout"),
        (content(stages=["createRunTime"]), "stages: unknown stage 'createRunTime'"),
        (content(stages=None), "stages"),
        (content(when={"annotations": ["x"]}), "when.annotations"),
    ],
)
def test_an_invalid_file_has_a_problem(tmp_path: Path, text: object, problem: str) -> None:
    entry = hooksd.read_entry(str(write(tmp_path, "a.json", text)))
    assert entry.file is None
    assert entry.problem is not None
    assert problem in entry.problem


@pytest.mark.parametrize(
    ("text", "remark"),
    [
        ({"hook": "/bin/true", "stages": ["prestart"], "cmds": [".*"]}, "before 1.0.0"),
        (content(version="0.1.0"), "before 1.0.0"),
        (content(hook={"path": "/nowhere/x"}), "is missing, so readers skip the file"),
        (content(when={"annotations": {"(": "x"}}), "'(' is not a valid regular expression: missing )"),
        (content(when={"annotations": {"x": "(?=y)"}}), "cannot check the syntax of the regular expression '(?=y)'"),
        (content(when={"annotations": {"x": "[[:alpha:]]"}}), "cannot check the syntax"),
        (content(when={"commands": [r"(a)\1"]}), "cannot check the syntax"),
    ],
)
def test_a_questionable_file_has_a_remark(tmp_path: Path, text: object, remark: str) -> None:
    entry = hooksd.read_entry(str(write(tmp_path, "a.json", text)))
    assert entry.problem is None
    assert entry.remark is not None
    assert remark in entry.remark


@pytest.mark.parametrize("path", sorted((ROOT / "oci-hooks").glob("*.json")), ids=lambda path: path.name)
def test_the_shipped_files_have_no_questionable_pattern(path: Path) -> None:
    file = hooksd.read_entry(str(path)).file
    assert file is not None
    assert hooksd.list_patterns(file)
    assert [hooksd.check_pattern(it) for it in hooksd.list_patterns(file)] == [None, None]


# --- In which order


def test_files_are_ordered_by_lower_case_name(tmp_path: Path) -> None:
    for name in ("B.json", "a.json", "10-c.json", "d.JSON", ".new.json.new", "readme"):
        write(tmp_path, name, content())
    assert [entry.name for entry in hooksd.read_directory(str(tmp_path))] == ["10-c.json", "a.json", "B.json"]
