# SPDX-License-Identifier: Apache-2.0
"""hooks.d as we read it, and as the code reads it that CRI-O, Podman and the NRI hook-injector share."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hook.host import hooksd
from hook.host.hooksd import Subject
from tests.support.containers import REPOSITORY
from tests.support.debian import CannotMake
from tests.support.matcher import Matcher, Refused

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hook.host.hooksd import Entry

PROGRAM = "/bin/true"
KUBERNETES = "10-resctrl-mon-hook-kubernetes.json"
STAGES = {
    "createContainer": "createContainer",
    "createRuntime": "createRuntime",
    "poststart": "poststart",
    "poststop": "poststop",
    "prestart": "createRuntime",
    "startContainer": "startContainer",
}
"""The stages of a file, and where their hooks get."""
many = settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

# --- What a pod's author, or anybody else, may write

RESTART_COUNT, MANAGER = "io.kubernetes.container.restartCount", "io.container.manager"
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
VALUES = TEXT | st.sampled_from(
    ["libpod", "libpod\n", "\nlibpod", "cri-o", "0", "-1", "no", "\u0661", "", "\x00", "x" * 4096]
)
KEYS = TEXT | st.sampled_from([RESTART_COUNT, MANAGER, f"{MANAGER}\n", f"x{MANAGER}", "io-container-manager"])
ANNOTATIONS = st.dictionaries(KEYS, VALUES, max_size=5)
COMMON = (
    *("^", "$", ".", ".*", "a", "b", "7", "libpod", "x?", "[ab]+", "[^a]", "[0-9]{1,2}", "(a|b)", "(?:ab)*", "|"),
    *(r"\.", r"\d", r"\w", r"\$", "[$]", r"\+", "a*?", r"\b", "\n", "é", "^libpod$", r"^io\.container\.manager$"),
)
"""Parts of patterns that mean the same to Go and to Python, but for the $."""
ODD = (
    *("[", "(", "*", "++", r"\1", "(?=a)", "(?!b)", "(?<n>a)", "(?P<n>a)", r"\z", r"\Z", r"\pL", r"\Qa.\E", "[]^]"),
    *("{,2}", "{1001}", "[[:alpha:]]", r"\u0041", "(?i)", "(?s)", "(?x)", "a{2,1}", r"\C", "(?>a)", r"\s", "[b-a]"),
)
"""Parts that one of the two does not know, or reads otherwise."""
SPOILT = st.sampled_from(
    [
        {},
        {"version": "2.0.0"},
        {"hook": {"path": ""}},
        {"hook": {"path": "/nowhere"}},
        {"hook": {"path": PROGRAM, "timeout": "60"}},
        {"hook": {"path": PROGRAM, "args": "x"}},
        {"when": []},
        {"when": {"always": "yes"}},
        {"when": {"annotations": ["a"]}},
        {"stages": None},
        {"stages": ["prestop"]},
    ]
)
BOOLEANS = st.sampled_from([True, False])


def files(*parts: str) -> st.SearchStrategy[dict[str, Any]]:
    """Contents of files with patterns of these parts, which readers take if they take the patterns."""
    pattern = st.lists(st.sampled_from(parts), max_size=3).map("".join)
    conditions = {
        "always": st.sampled_from([True, True, True, False]),
        "annotations": st.none() | st.dictionaries(pattern, pattern, min_size=1, max_size=2),
        "commands": st.lists(pattern, max_size=2),
        "hasBindMounts": st.sampled_from([True, True, True, False]),
    }
    return st.fixed_dictionaries(
        {
            "version": st.just("1.0.0"),
            "hook": st.fixed_dictionaries({"path": st.just(PROGRAM)}, optional={"timeout": st.integers(1, 99)}),
            "when": st.fixed_dictionaries({}, optional=conditions),
            "stages": st.lists(st.sampled_from(sorted(STAGES)), unique=True, max_size=3),
        }
    )


def directories(contents: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[list[dict[str, Any]]]:
    names = st.sampled_from(["10-a.json", "b.json", "C.json", ".json", "d.JSON", "e.txt"])
    return st.lists(st.dictionaries(names, contents, max_size=2), min_size=1, max_size=2)


SUBJECTS = st.builds(Subject, ANNOTATIONS, TEXT, BOOLEANS)


# --- Both readers


@pytest.fixture(scope="session")
def matcher() -> Iterator[Matcher]:
    try:
        found = Matcher()
    except CannotMake as reason:
        pytest.skip(str(reason))
    with closing(found):
        yield found


def write(top: Path, directories: Sequence[Mapping[str, Mapping[str, Any]]]) -> list[Path]:
    """The files, each with its own name among the arguments of its hook."""
    shutil.rmtree(top, ignore_errors=True)
    paths = [top / str(number) for number in range(len(directories))]
    for path, files in zip(paths, directories):
        path.mkdir(parents=True)
        for name, content in files.items():
            hook = {"args": [PROGRAM, name], **content["hook"]}
            (path / name).write_text(json.dumps({**content, "hook": hook}), encoding="utf-8")
    return paths


def shipped() -> dict[str, Any]:
    """The files in oci-hooks, with a program that is there."""
    found = {path.name: json.loads(path.read_text()) for path in (REPOSITORY / "oci-hooks").glob("*.json")}
    return {name: {**content, "hook": {"path": PROGRAM}} for name, content in found.items()}


def theirs(matcher: Matcher, directories: Sequence[Path], subject: Subject) -> dict[str, list[str]] | None:
    """The names of the files whose hooks run, by stage; None: they are refused."""
    try:
        hooks = matcher.ask(
            directories, subject.annotations, subject.command or "", has_bind_mounts=subject.has_bind_mounts
        )
    except Refused:
        return None
    return {stage: [hook["args"][-1] for hook in found] for stage, found in hooks.items()}


def ours(entries: Sequence[Entry], subject: Subject) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for entry in entries:
        if entry.file is not None and hooksd.find_mismatch(entry.file, subject) is None:
            for stage in entry.file.stages:
                found.setdefault(STAGES[stage], []).append(entry.name)
    return found


def test_we_match_files_as_their_readers_do(matcher: Matcher, tmp_path: Path) -> None:
    @many
    @given(directories(files(*COMMON)), SUBJECTS)
    def check(contents: list[dict[str, Any]], subject: Subject) -> None:
        paths = write(tmp_path / "hooks.d", contents)
        read = hooksd.merge_directories(map(str, paths))
        assert [(entry.problem, entry.remark) for entry in read] == [(None, None)] * len(read)
        assert ours(read, subject) == theirs(matcher, paths, subject)

    check()


def test_we_remark_upon_every_file_that_its_readers_refuse(matcher: Matcher, tmp_path: Path) -> None:
    """And match the others as they do."""
    contents = st.tuples(files("", "a", "^", *ODD), SPOILT).map(lambda pair: {**pair[0], **pair[1]})

    @many
    @given(directories(contents), SUBJECTS)
    def check(contents: list[dict[str, Any]], subject: Subject) -> None:
        paths = write(tmp_path / "hooks.d", contents)
        read = [entry for path in paths for entry in hooksd.read_directory(str(path))]
        expected = theirs(matcher, paths, subject)
        if expected is None:
            assert any(entry.problem or entry.remark for entry in read)
        elif not any(entry.remark for entry in read):
            assert [entry.problem for entry in read] == [None] * len(read)
            assert ours(hooksd.merge_directories(map(str, paths)), subject) == expected

    check()


# --- What we ship


def test_the_files_that_we_ship_match_as_we_say(matcher: Matcher, tmp_path: Path) -> None:
    paths = write(tmp_path, [shipped()])
    read = hooksd.read_directory(str(paths[0]))

    @many
    @given(SUBJECTS)
    def check(subject: Subject) -> None:
        assert ours(read, subject) == theirs(matcher, paths, subject)

    check()


def test_no_annotation_of_a_pod_keeps_the_hook_off(matcher: Matcher, tmp_path: Path) -> None:
    """CRI-O and the hook-injector put the pod's annotations over the kubelet's."""
    paths = write(tmp_path, [shipped()])

    @many
    @given(ANNOTATIONS)
    def check(annotations: dict[str, str]) -> None:
        seen = Subject({RESTART_COUNT: "0", **annotations}, "/bin/sh")
        found = theirs(matcher, paths, seen)
        assert found is not None
        for stage in ("createRuntime", "poststop"):
            assert KUBERNETES in found[stage]

    check()
