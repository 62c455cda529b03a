# SPDX-License-Identifier: Apache-2.0
"""install: what it refuses; and its steps: each leaves the whole of what it is about,
or what was there before.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from pyfakefs.fake_filesystem import FakeFilesystem

from hook.install import install
from hook.install.install import (
    Program,
    Refused,
    Step,
    Wanted,
    add_hook,
    find_problems,
    lock_directories,
    make_link,
    remove_file,
    run_command,
    try_program,
    write_file,
)
from hook.node import programs
from hook.node.paths import TARGETS, Places
from hook.node.programs import Exit
from pyz import archive

HOOK = {
    "version": "1.0.0",
    "hook": {"path": "/bin/true"},
    "when": {"always": True},
    "stages": ["poststop"],
}
FILE, LINK, DIRECTORY = Path("/usr/libexec/oci/x"), Path("/usr/bin/x"), Path("/usr/libexec/oci")
FILES = pytest.mark.usefixtures("fs")


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return Program(str(archive.build(output=tmp_path_factory.mktemp("pyz") / "x.pyz")))


def test_what_would_not_work_is_refused_with_a_remedy(fs: FakeFilesystem, shipped: Program) -> None:
    def problems(places: Places = Places()) -> str:  # noqa: B008  it is never changed
        return "\n".join(find_problems(Wanted(shipped, places, TARGETS)))

    assert problems() == ""
    assert "a systemd unit cannot hold" in problems(Places("/opt/%h"))
    for path in Places().files():
        fs.create_file(path, contents=json.dumps(HOOK))
        assert (
            problems()
            == f"{path} exists and was not installed by resctrl-mon-hook; remedy: move it away"
        )
        fs.remove(path)
    theirs = Places(hooks_dir="/etc/containers/oci/hooks.d")
    hook = {**HOOK, "hook": {"path": theirs.program}}
    fs.create_file(theirs.json("podman"), contents=json.dumps(hook))
    assert problems(theirs) == ""
    assert problems() == (
        f"{theirs.json('podman')} already calls the hook; remedy: remove it, or its package, or "
        f"uninstall --hooks-dir={theirs.hooks_dir}"
    )


@pytest.mark.parametrize(
    ("ended", "problem", "remedy"),
    [
        (
            Exit(1, "", "broken"),
            "exit status 1: broken",
            "see whether its interpreter is there, and whether SELinux",
        ),
        (Exit(0, "", "usage: x\n"), "usage: x", "see whether"),
        (Exit(None, "", "cannot start: EACCES"), "cannot start: EACCES", "see whether"),
        (
            Exit(None, "", "cannot start: ENOEXEC"),
            "cannot start: ENOEXEC",
            f"take the file for {os.uname().machine}",
        ),
    ],
)
def test_a_program_that_does_not_run_is_refused_with_the_cause(
    monkeypatch: pytest.MonkeyPatch, ended: Exit, problem: str, remedy: str
) -> None:
    monkeypatch.setattr(programs, "run_program", lambda _words, **_more: ended)
    with pytest.raises(Refused, match=f"^/x does not run: {problem}; remedy: {remedy}"):
        try_program("/x")


# --- Steps


def take(*which: Step) -> list[str]:
    return install.format_steps(install.take_steps(which, dry_run=False))


@FILES
@pytest.mark.parametrize(
    ("step", "line", "is_made"),
    [
        (
            write_file(str(FILE), b"new", 0o755),
            f"write {FILE}",
            lambda: FILE.read_bytes() == b"new",
        ),
        (
            make_link(str(LINK), "../new"),
            f"link {LINK} -> ../new",
            lambda: os.readlink(LINK) == "../new",
        ),
        (remove_file(str(FILE)), f"remove {FILE}", lambda: not FILE.exists()),
        (remove_file(str(LINK)), f"remove {LINK}", lambda: not LINK.is_symlink()),
    ],
    ids=["write", "link", "remove a file", "remove a link"],
)
@pytest.mark.parametrize("before", ["nothing", "other content", "other mode", "link"])
def test_a_step_is_taken_once_whatever_was_there(
    step: Step, line: str, is_made: Callable[[], bool], before: str
) -> None:
    victim = Path("/victim")
    victim.write_bytes(b"new")
    if before != "nothing":
        take(
            write_file(
                str(FILE),
                b"old" if "content" in before else b"new",
                0o600 if "mode" in before else 0o755,
            )
        )
        take(make_link(str(LINK), "../old"))
    if before == "link":
        FILE.unlink()
        FILE.symlink_to(victim)
    assert take(step) == ([] if before == "nothing" and step.verb == "remove" else [line])
    assert is_made()
    assert not FILE.is_symlink() or step.what != str(FILE)
    assert step.verb != "write" or FILE.stat().st_mode & 0o7777 == 0o755
    assert take(step) == []
    assert victim.read_bytes() == b"new"


@FILES
def test_a_temporary_file_of_a_killed_step_is_removed() -> None:
    """Also if the step itself is done: an upgrade was killed,
    and the former version is installed again.
    """
    DIRECTORY.mkdir(parents=True)
    victim = Path("/victim")
    victim.write_text("theirs")
    for step in (
        write_file(str(FILE), b"ours"),
        make_link(str(FILE), "ours"),
        remove_file(str(FILE)),
    ):
        for _ in range(2):  # before and after the step is done
            (DIRECTORY / ".x.new").symlink_to(victim)  # others may have put a link there
            assert take(step)
            assert os.listdir(DIRECTORY) == ([] if step.verb == "remove" else ["x"])
            assert victim.read_text() == "theirs"


@FILES
@pytest.mark.parametrize("before", [None, b"old"])
def test_a_file_that_fails_its_check_replaces_nothing(before: bytes | None) -> None:
    def refuse(path: str) -> None:
        assert path != str(FILE)
        assert Path(path).read_bytes() == b"new"
        raise Refused("no")

    if before is not None:
        take(write_file(str(FILE), before))
    with pytest.raises(Refused, match="no"):
        take(write_file(str(FILE), b"new", check=refuse))
    assert [(path.name, path.read_bytes()) for path in DIRECTORY.iterdir()] == (
        [("x", before)] if before else []
    )


def test_a_program_that_fails_does_not_stop_later_steps(tmp_path: Path) -> None:
    last = write_file(str(tmp_path / "x"), b"")
    assert take(run_command("sh", "-c", "echo no luck >&2; exit 1"), last) == [
        "run sh -c 'echo no luck >&2; exit 1'",
        "  failed: exit status 1: no luck",
        f"write {tmp_path}/x",
    ]


def test_a_second_lock_on_a_directory_is_refused(tmp_path: Path) -> None:
    with (
        lock_directories(str(tmp_path)),
        pytest.raises(Refused, match="another"),
        lock_directories(str(tmp_path)),
    ):
        pass
    with (
        lock_directories(str(tmp_path), f"{tmp_path}/."),
        lock_directories(str(tmp_path / "nothing")),
    ):
        pass


# --- The specification that containerd begins with

OURS = {
    "path": "/usr/libexec/oci/hooks.d/resctrl-mon-hook.pyz",
    "args": ["resctrl-mon-hook", "hook", "--linger=60"],
}
OLDER = {"path": "/opt/resctrl-mon-hook.pyz", "args": ["resctrl-mon-hook", "hook"]}
OTHER = {"path": "/usr/bin/other"}
BOTH = {"createRuntime": [OURS], "poststop": [OURS]}


BY_DEFAULT = {"type": "RLIMIT_NOFILE", "hard": 1024, "soft": 1024}
PROCESSES: list[object] = [
    {"rlimits": [{**BY_DEFAULT, "hard": 4096}]},
    {"rlimits": [BY_DEFAULT, {**BY_DEFAULT, "type": "RLIMIT_NPROC"}]},
    *({"rlimits": []}, {"cwd": "/"}, {}, None, 7),
]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"hooks": BOTH}),
        *(({"hooks": hooks}, {"hooks": BOTH}) for hooks in (None, {}, {"poststop": None})),
        (
            {"hooks": {"createRuntime": [OTHER, OLDER], "prestart": [OTHER]}},
            {"hooks": {**BOTH, "createRuntime": [OURS, OTHER], "prestart": [OTHER]}},
        ),
        # containerd takes this limit out of its own specification, and would leave it in ours
        (
            {"process": {"cwd": "/", "rlimits": [BY_DEFAULT]}},
            {"process": {"cwd": "/"}, "hooks": BOTH},
        ),
        *(({"process": process}, {"process": process, "hooks": BOTH}) for process in PROCESSES),
    ],
)
def test_the_hook_is_added_once_and_all_but_the_file_limit_of_ctr_stays(
    given: dict[str, object], expected: dict[str, object]
) -> None:
    once = add_hook({"ociVersion": "1.0.2", **given}, OURS)
    assert once == {"ociVersion": "1.0.2", **expected}
    assert add_hook(once, OURS) == once


def test_an_invalid_specification_is_refused() -> None:
    version = {"ociVersion": "1"}
    for spec, problem in (
        ([], "not an OCI runtime specification"),
        ({}, "ociVersion: missing"),
        ({"ociVersion": 1}, "ociVersion: missing"),
        ({**version, "hooks": ["x"]}, "invalid hooks"),
        ({**version, "hooks": {"poststop": {"path": "x"}}}, "invalid hooks"),
        ({**version, "hooks": {"createRuntime": [{"path": 1}]}}, "invalid hooks"),
    ):
        with pytest.raises((ValueError, OSError), match=problem):
            add_hook(spec, OURS)
