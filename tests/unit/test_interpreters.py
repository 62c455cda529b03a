# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import interpreters
from tests.support.interpreters import CannotFetch, Interpreter


def pretend(directory: Path, name: str, answer: str) -> Path:
    """A program that gives an interpreter's answer to the probe."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    path.write_text(f"#!/bin/sh\necho '{answer}'\n", encoding="utf-8")
    path.chmod(0o755)
    return path


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A home and a PATH of our own, in which nothing of the machine's shows up."""
    environment = {"HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "bin")}
    everywhere = interpreters.directories
    monkeypatch.setattr(
        interpreters,
        "directories",
        lambda given: (path for path in everywhere(given) if path.is_relative_to(tmp_path)),
    )
    return environment


def test_this_interpreter_reports_its_own_version() -> None:
    base = Path(sys.base_prefix, "bin", interpreters.python_name(sys.version_info[:2]))
    assert interpreters.probe(base) == Interpreter(sys.version_info[:3], base)


@pytest.mark.parametrize("answer", ["", "3.11.2", "3 11 x /usr", "3 11 2"])
def test_what_is_no_answer_is_no_interpreter(answer: str) -> None:
    assert interpreters.parse(answer, Path("p")) is None


def test_a_prefix_may_hold_spaces() -> None:
    assert interpreters.parse("3 9 18 /opt/my pythons\n", Path("p")) == Interpreter((3, 9, 18), Path("p"))


def test_a_program_that_fails_is_no_interpreter(tmp_path: Path) -> None:
    broken = tmp_path / "python3.9"
    broken.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    broken.chmod(0o755)
    assert interpreters.probe(broken) is None
    assert interpreters.probe(tmp_path / "absent") is None


def test_a_venv_is_not_one_more_interpreter(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "v"], check=True)
    assert interpreters.probe(tmp_path / "v/bin/python") is None


def test_a_venv_in_the_path_does_not_hide_its_base(tmp_path: Path, environment: dict[str, str]) -> None:
    name = interpreters.python_name(sys.version_info[:2])
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "v"], check=True)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / name).symlink_to(Path(sys.base_prefix, "bin", name))
    found = interpreters.find({**environment, "PATH": f"{tmp_path}/v/bin:{tmp_path}/bin"})
    assert [interpreter.path for interpreter in found] == [tmp_path / "bin" / name]


def test_one_of_each_minor_sorted_by_version(tmp_path: Path, environment: dict[str, str]) -> None:
    newer = pretend(tmp_path / "bin", "python3.10", "3 10 13 /usr")
    older = pretend(tmp_path / "home/.pyenv/versions/3.9.18/bin", "python3.9", "3 9 18 /pyenv")
    pretend(tmp_path / "home/.pyenv/versions/3.10.1/bin", "python3.10", "3 10 1 /pyenv")
    assert interpreters.find(environment) == [
        Interpreter((3, 9, 18), older),
        Interpreter((3, 10, 13), newer),
    ]


def test_shims_are_passed_over(tmp_path: Path, environment: dict[str, str]) -> None:
    pretend(tmp_path / "shims", "python3.9", "3 9 18 /pyenv")
    assert interpreters.find({**environment, "PATH": str(tmp_path / "shims")}) == []


@pytest.mark.parametrize(
    ("variable", "below"),
    [
        ("PYENV_ROOT", "versions/3.12.1/bin"),
        ("UV_PYTHON_INSTALL_DIR", "cpython-3.12.1-linux-x86_64-gnu/bin"),
        ("XDG_DATA_HOME", "uv/python/cpython-3.12.1-linux-x86_64-gnu/bin"),
        ("XDG_CACHE_HOME", "resctrl-mon-hook/pythons/python3.12/usr/bin"),
    ],
)
def test_every_store_is_searched_where_its_variable_says(
    tmp_path: Path, environment: dict[str, str], variable: str, below: str
) -> None:
    path = pretend(tmp_path / "store" / below, "python3.12", "3 12 1 /store")
    found = interpreters.find({**environment, variable: str(tmp_path / "store")})
    assert found == [Interpreter((3, 12, 1), path)]


def test_what_is_missing_is_what_is_promised_less_what_is_there() -> None:
    found = [Interpreter((3, 9, 1), Path("a")), Interpreter((3, 13, 0), Path("b"))]
    assert interpreters.missing(found) == [(3, 10), (3, 11), (3, 12), (3, 14)]


def test_the_mirror_is_the_archive_not_its_neighbours() -> None:
    security, archive = "http://mirror.example/debian-security/", "http://mirror.example/debian/"
    assert interpreters.choose_mirror([security, archive, archive]) == archive
    with pytest.raises(CannotFetch, match="no mirror of Debian"):
        interpreters.choose_mirror([security, "http://mirror.example/ubuntu/"])


def test_versions_that_debian_never_had_are_reported() -> None:
    with pytest.raises(CannotFetch, match="no Debian suite has it"):
        interpreters.fetch((3, 12))


@pytest.mark.parametrize(
    ("loader", "knows_argv0"),
    [("lib/x86_64-linux-gnu/ld-2.31.so", False), ("usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2", True)],
)
def test_a_wrapper_starts_the_program_with_its_own_loader(tmp_path: Path, loader: str, knows_argv0: bool) -> None:
    """The loader is a script that shows how it was called, and the tree moves after it was wrapped."""
    tree, target = tmp_path / "tree", tmp_path / "it's a target"
    shows = pretend((tree / loader).parent, Path(loader).name, "")
    shows.write_text(f"#!/bin/sh\n{'# --argv0' if knows_argv0 else ''}\nprintf '%s\\n' \"$@\"\n", encoding="utf-8")
    pretend(tree / "usr/bin", "python3.9", "")
    interpreters._wrap(tree, target, "python3.9")
    tree.rename(target)
    program = target / "usr/bin/python3.9"
    done = subprocess.run([program, "-c", "a b"], capture_output=True, text=True, check=True)
    argv0 = ["--argv0", str(program)] if knows_argv0 else []
    libraries = str((target / loader).parent)
    passed = ["--library-path", libraries, *argv0, f"{program}.real"]
    assert done.stdout.splitlines() == [*passed, "-c", "a b"]
    assert interpreters.start_command(program) == [str(target / loader), *passed]


def test_what_is_no_wrapper_starts_itself() -> None:
    assert interpreters.start_command(Path(sys.executable)) == [sys.executable]


def test_fetching_never_fails_the_caller(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def offline(_minor: tuple[int, int]) -> Interpreter:
        raise CannotFetch("apt-get: no route")

    monkeypatch.setattr(interpreters, "find", list)
    monkeypatch.setattr(interpreters, "fetch", offline)
    assert interpreters.main(["--fetch"]) == 0
    assert "python3.14: cannot be had: apt-get: no route" in capsys.readouterr().err
