# SPDX-License-Identifier: Apache-2.0
"""The bytecode in the .pyz: each CPython finds its own,
and it is the modules as they are written.
"""

from __future__ import annotations

import ast
import sys
import zipfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import pytest

from pyz import BuildError, archive, bytecode
from pyz.bytecode import START, Bytecode, compile_modules, find_imports, module_name
from tests.unit.files import ELSEWHERE, broken, each_python, imported, loaded, start


def test_the_zip_holds_bytecode_for_every_interpreter(pyz: Path, pythons: list[str]) -> None:
    with zipfile.ZipFile(pyz) as file:
        held = {name for name in file.namelist() if name.startswith("bytecode/")}
    show = ("-c", "import sys; print(sys.implementation.cache_tag)")
    tags = {start([python, *show]).stdout.strip() for python in pythons}
    assert held == {f"bytecode/{tag}" for tag in tags} | {archive.SOURCES}


def test_a_release_needs_every_version(source: Path, tmp_path: Path) -> None:
    done = start(
        [
            sys.executable,
            source / "build.py",
            "--release",
            "--bytecode",
            sys.executable,
            "--output",
            tmp_path / "x.pyz",
        ]
    )
    assert done.returncode == 2
    assert "no interpreter of 3." in done.stderr
    assert not list(tmp_path.iterdir())


def test_an_interpreter_that_does_not_start_is_named(source: Path, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"/bin/false cannot compile: .*exit status 1"):
        archive.build(root=source, output=tmp_path / "x.pyz", interpreters=["/bin/false"])


@each_python
@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["no-such-verb", *ELSEWHERE], ["list", *ELSEWHERE], ["hook", *ELSEWHERE]],
)
def test_every_interpreter_finds_its_bytecode(pyz: Path, python: str, arguments: list[str]) -> None:
    assert "hook.errors" not in imported(pyz, python, arguments)


@each_python
@pytest.mark.parametrize("is_old", [False, True])
def test_a_python_whose_bytecode_is_missing_or_of_a_pre_release_takes_the_sources(
    source: Path, compiled: dict[str, Bytecode], python: str, tmp_path: Path, is_old: bool
) -> None:
    """That of a pre-release has the version's name, and another magic number."""
    codes = [code for other, code in compiled.items() if other != python]
    codes += [replace(compiled[python], magic=b"xx\r\n")] if is_old else []
    pyz = tmp_path / "x.pyz"
    pyz.write_bytes(archive.join(archive.read_sources(source), archive.shebang(python), codes))
    done = start([python, "-X", "importtime", "-ISc", archive.BOOT, pyz, "--help"])
    assert (done.returncode, "hook.errors" in loaded(done.stderr)) == (0, True)


@each_python
@pytest.mark.parametrize(
    "first_line", [None, b"", b"#!/bin/no such place\n", b"#!" + b"x" * 300 + b"\n"]
)
def test_started_by_name_with_whatever_first_line_it_finds_its_bytecode_too(
    pyz: Path, python: str, first_line: bytes | None, tmp_path: Path
) -> None:
    """As `python3 -m zipapp --python=...` makes it."""
    changed = tmp_path / "x.pyz"
    line, end, rest = pyz.read_bytes().partition(b"\n")
    changed.write_bytes(line + end + rest if first_line is None else first_line + rest)
    done = start(
        [python, "-X", "importtime", *(["-IS"] if first_line is None else []), changed, "--help"]
    )
    assert "hook.errors" not in loaded(done.stderr)
    assert (done.returncode, "resctrl-mon-hook" in done.stdout) == (0, True)


RAISES = ("store", "cli/verbs")
"""A module in the first part of the bytecode, and one in the rest."""


@cache
def make_odd(source: Path, python: str) -> bytes:
    """A file in which RAISES raise if an argument names them, and most of what commands
    need has no bytecode.
    """
    contents = archive.read_sources(source)
    for name in RAISES:
        contents[f"hook/{name}.py"] += (
            b"\nif '%s' in __import__('sys').argv: raise MemoryError\n" % name.encode()
        )
    few = {
        name: text
        for name, text in contents.items()
        if name.count("/") == 1 or name in ("hook/cli/__init__.py", "hook/cli/verbs.py")
    }
    return archive.join(contents, archive.shebang(python), bytecode.compile_all(few, [python]))


@each_python
def test_a_traceback_names_file_and_line(source: Path, python: str, tmp_path: Path) -> None:
    for name in RAISES:
        done = broken(
            tmp_path / "x", make_odd(source, python), "broken.pyz", "list", *ELSEWHERE, name
        )
        line = len((source / f"hook/{name}.py").read_text(encoding="utf-8").splitlines()) + 2
        assert f'"<hook/{name}.py>", line {line}' in done.stderr


@each_python
def test_what_has_no_bytecode_is_found_in_the_zip(
    python: str, source: Path, tmp_path: Path
) -> None:
    done = broken(tmp_path / "x", make_odd(source, python), "x.pyz", "--version")
    assert done.stdout.startswith("resctrl-mon-hook ")


@each_python
@pytest.mark.parametrize("name", ["the loader and what it has", "what it loads"])
def test_bytecode_that_is_no_bytecode_exits_with_0_for_runtimes_and_2_for_people(
    source: Path, compiled: dict[str, Bytecode], pyz: Path, python: str, name: str
) -> None:
    contents, code = archive.read_sources(source), compiled[python]
    at = 0 if name.startswith("the loader") else code.size
    spoilt = replace(code, content=code.content[:at] + b"\0" * (len(code.content) - at))
    data = archive.join(contents, archive.shebang(python), [spoilt])
    # Hooks take no more than the first part.
    for verb, status in (("hook", 0), ("list", 2), ("--help", 2))[at > 0 :]:
        done = broken(pyz, data, "spoilt.pyz", verb, *ELSEWHERE)
        assert done.returncode == status
        assert "resctrl-mon-hook: " in done.stderr.splitlines()[-1]


# --- The modules

START_TEXT = """
if TYPE_CHECKING:
    import hook.checked
try:
    from hook.low.upper import UPPER
except ImportError:
    pass
def start():
    from hook import late
"""
TEXTS = {
    **{
        "hook/__init__.py": "",
        "hook/__main__.py": START_TEXT,
        "hook/low/__init__.py": "",
        "hook/low/lower.py": "",
    },
    **{
        "hook/low/upper.py": "from hook.low import lower",
        "hook/late.py": "",
        "hook/checked.py": "",
    },
}


def test_the_first_part_is_what_the_start_imports_in_the_order_of_imports() -> None:
    trees = {module_name(path): ast.parse(text) for path, text in TEXTS.items()}
    assert find_imports(trees, START) == [
        "hook",
        "hook.low",
        "hook.low.lower",
        "hook.low.upper",
        START,
    ]


def test_a_stage_makes_the_modules_that_only_it_imports_and_none_twice() -> None:
    texts = {
        **TEXTS,
        "hook/create.py": "from hook import checked, late\nfrom hook.low import upper",
    }
    codes, eager = compile_modules(texts)
    there = {name: ModuleType(name) for name in (*eager, "hook.checked")}
    vars(there["hook"])["checked"] = there["hook.checked"]
    names: dict[str, object] = {}
    with patch.dict(sys.modules, there):
        exec(codes["hook.create"], names)  # noqa: S102  ours
        assert (names["late"], names["checked"]) == (
            sys.modules["hook.late"],
            there["hook.checked"],
        )
