# SPDX-License-Identifier: Apache-2.0
"""hooks.d as its readers have it, and the hooks in a config.json: what is valid, in which order, and what is ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyfakefs.fake_filesystem import FakeFilesystem

from hook.node import hooksd
from hook.node.files import Unreadable
from hook.node.models import HookFile, HookProgram

ROOT = Path(__file__).resolve().parents[2]
PATH, PROGRAM = "/etc/containers/oci/hooks.d/a.json", "/bin/true"
OURS = "/opt/resctrl-mon-hook.pyz"


def content(when: object = None, **changes: object) -> dict[str, Any]:
    hook = {"path": PROGRAM, "args": ["true"]}
    when = {"always": True} if when is None else when
    return {"version": "1.0.0", "hook": hook, "when": when, "stages": ["poststop"], **changes}


def read(fs: FakeFilesystem, text: object) -> hooksd.Entry:
    fs.create_file(PROGRAM)
    fs.create_file(PATH, contents=text if isinstance(text, str) else json.dumps(text))
    return hooksd.read_entry(PATH)


# --- What a file must hold


@pytest.mark.parametrize(
    ("text", "problem", "remark"),
    [
        (content(), "", ""),
        ("", "not JSON", ""),
        ("{", "Expecting", ""),
        ("[]", "all of it", ""),
        (content(version="2.0.0"), "version", ""),
        (content(hook={}), "hook.path", ""),
        (content(hook={"path": ""}), "hook.path", ""),
        (content(hook={"path": PROGRAM, "timeout": "60"}), "hook.timeout", ""),
        (content(stages=["createRunTime"]), "stages: unknown stage 'createRunTime'", ""),
        (content(stages=None), "stages", ""),
        (content(when={"annotations": ["x"]}), "when.annotations", ""),
        ({"hook": "/bin/true", "stages": ["prestart"], "cmds": [".*"]}, "", "before 1.0.0"),
        (content(version="0.1.0"), "", "before 1.0.0"),
        (content(version="7", Version="1.0.0"), "", ""),  # the last one counts
        (content(Version="7"), "version", ""),
        (content(hook={"path": "/nowhere/x"}), "", "is missing, so readers skip the file"),
        (content(when={"annotations": {"(": "x"}}), "'(' is not a valid regular expression", ""),
        (content(when={"annotations": {"x": "a)"}}), "'a)' is not a valid regular expression", ""),
        (content(when={"commands": ["x", "*"]}), "'*' is not a valid regular expression", ""),
        (content(when={"commands": ["("]}, hook={"path": "/nowhere/x"}), "", "is missing, so readers skip the file"),
        (content(when={"commands": [r"[\d-z]"]}), "", "cannot check"),  # no range in Go, an error in Python
        (
            content(when={"annotations": {"x": "(?=y)"}}),
            "",
            "cannot check the regular expression '(?=y)'",
        ),
        (content(when={"annotations": {"x": "[[:alpha:]]"}}), "", "cannot check"),
        (content(when={"commands": [r"(a)\1"]}), "", "cannot check"),
    ],
)
def test_an_invalid_file_has_a_problem_and_a_questionable_one_a_remark(
    fs: FakeFilesystem, text: object, problem: str, remark: str
) -> None:
    entry = read(fs, text)
    assert problem in (entry.problem or "")
    assert remark in (entry.remark or "")
    assert (bool(entry.problem), bool(entry.remark)) == (bool(problem), bool(remark))
    assert problem == "" or entry.file is None
    assert text != content() or entry == hooksd.Entry(PATH, HookFile.model_validate(text))


@pytest.mark.parametrize("path", sorted((ROOT / "oci-hooks").glob("*.json")), ids=lambda path: path.name)
def test_the_shipped_files_are_ours_and_have_no_questionable_pattern(path: Path) -> None:
    entry = hooksd.read_entry(str(path))
    assert entry.own is not None
    assert hooksd.parse_options(entry.own)[1] == []
    assert entry.file is not None
    assert [*map(hooksd.is_valid, hooksd.list_patterns(entry.file))] == [True, True]


@pytest.mark.parametrize(
    "text",
    [
        '{"Version": "1.0.0", "HOOK": {"Path": "/bin/true", "Timeout": 60}, "stageS": ["poststop"]}',
        '{"version": "1.0.0", "hook": {"path": "/bin/true", "timeout": 60}, "when": null, "stages": ["poststop"]}',
    ],
)
def test_fields_of_any_case_are_read_and_those_left_out_are_null(fs: FakeFilesystem, text: str) -> None:
    entry = read(fs, text)
    assert (entry.problem, entry.remark) == (None, None)
    assert entry.file == HookFile(version="1.0.0", hook=HookProgram(path=PROGRAM, timeout=60), stages=["poststop"])


def test_invalid_utf_8_is_read_in_a_string_and_nowhere_else(fs: FakeFilesystem) -> None:
    text = json.dumps(content(hook={"path": PROGRAM, "args": ["X"]})).encode()
    fs.create_file(PROGRAM)
    fs.create_file(PATH, contents=text.replace(b"X", b"\xff"))
    entry = hooksd.read_entry(PATH)
    assert entry.problem is None
    assert entry.file is not None
    assert entry.file.hook.args == ["\ufffd"]
    fs.create_file("/out.json", contents=text + b"\xff")
    assert "more than one value" in (hooksd.read_entry("/out.json").problem or "")


def test_a_link_to_nothing_is_skipped_and_a_directory_is_a_problem(fs: FakeFilesystem) -> None:
    fs.create_symlink("/d/a.json", "/nowhere")
    fs.create_dir("/d/b.json")
    link, directory = hooksd.read_directory("/d")
    assert (link.problem, link.remark) == (None, "it does not exist, or is a link to nothing, so readers skip it")
    assert directory.problem == "cannot read it: not a regular file"


def test_files_are_ordered_by_lower_case_name(fs: FakeFilesystem) -> None:
    assert hooksd.read_directory("/d") == []
    for name in ("B.json", "a.json", "10-c.json", "d.JSON", ".new.json.new", "readme"):
        fs.create_file(f"/d/{name}")
    assert [entry.name for entry in hooksd.read_directory("/d")] == ["10-c.json", "a.json", "B.json"]


# --- The hooks in a config.json


@pytest.mark.parametrize(
    ("config", "programs", "options"),
    [
        ({}, set(), []),
        ({"hooks": None}, set(), []),
        ({"hooks": {"prestart": None, "poststop": [{"path": OURS}]}}, {OURS}, []),
        ({"hooks": {"createRuntime": [{"path": OURS}, {"path": PROGRAM}]}}, {OURS, PROGRAM}, [0]),
        ({"hooks": {"createRuntime": [{"path": OURS, "args": ["x", "hook", "--linger=5"]}]}}, {OURS}, [5]),
    ],
)
def test_the_hooks_of_a_config_are_found(
    fs: FakeFilesystem, config: object, programs: set[str], options: list[int]
) -> None:
    """`options`: the --linger of each createRuntime hook that is ours."""
    fs.create_file("/config.json", contents=json.dumps(config))
    assert hooksd.read_programs("/config.json") == programs
    ours = hooksd.find_own_hooks(hooksd.read_hooks("/config.json"))
    assert [hooksd.parse_options(it)[0].linger for it in ours] == options


@pytest.mark.parametrize("config", [[], {"hooks": 7}, {"hooks": {"poststop": [7]}}, {"hooks": {"poststop": [{}]}}])
def test_invalid_hooks_of_a_config_are_unreadable(fs: FakeFilesystem, config: object) -> None:
    fs.create_file("/config.json", contents=json.dumps(config))
    with pytest.raises(Unreadable, match=r"^/config\.json: invalid hooks: "):
        hooksd.read_programs("/config.json")


def test_a_bad_option_of_a_hook_is_complained_of() -> None:
    hook = HookProgram(path=OURS, args=["x", "hook", "--lingr=5", "--linger=x"])
    assert [it.split()[-1] for it in hooksd.parse_options(hook)[1]] == ["number", "'--lingr'"]
