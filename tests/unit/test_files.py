# SPDX-License-Identifier: Apache-2.0
"""What the bounded reader does with each thing that a path may name."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hook.node import files
from hook.node.files import Unreadable


def make_huge(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


def make_crowded(path: Path) -> None:
    path.mkdir()
    for number in range(4):
        (path / str(number)).touch()


def test_what_cannot_be_read_is_one_kind_of_error_that_names_the_path(tmp_path: Path) -> None:
    made: list[tuple[Callable[[Path], object], str]] = [
        (lambda _path: None, "ENOENT"),
        (os.mkfifo, "not a regular file"),
        (os.mkdir, "not a regular file"),
        (make_huge, "larger than 9 bytes"),
        (lambda path: path.symlink_to(path.name), "ELOOP"),
        (lambda path: path.symlink_to("/dev/zero"), "not a regular file"),
        (lambda path: path.write_bytes(b"\xff"), "not UTF-8 at byte 0"),
        (lambda path: path.write_text("["), "not JSON: no value at character 1"),
        (lambda path: path.write_text("{} {}"), "not JSON: more than one value, at character 2"),
        (lambda path: path.write_text("0123456789"), "larger than 9 bytes"),
    ]
    for number, (make, why) in enumerate(made):
        path = tmp_path / str(number)
        make(path)
        with pytest.raises(Unreadable) as caught:
            files.read_json(str(path), 9)
        assert str(caught.value) == f"{path}: {why}"
        assert caught.value.is_missing is (why == "ENOENT")
    for name in ("a\0b", "\ud800", "x" * 5000, "/dev/tty"):
        with pytest.raises(Unreadable):
            files.read(name, 100)


def test_text_that_is_nested_a_million_deep_or_no_toml_is_one_kind_of_error(tmp_path: Path) -> None:
    path = tmp_path / "x"
    for read, text, why in (
        (files.read_json, "[" * 1_000_000, "nested too deeply"),
        (files.read_toml, "x = " + "[" * 100_000, "not TOML: maximum recursion depth exceeded"),
        (files.read_toml, "x = ", r"not TOML: Invalid value \(at end of document\)"),
        (files.read_toml, "x = 0000-00-00", "not TOML: "),
    ):
        path.write_text(text)
        with pytest.raises(Unreadable, match=why):
            read(str(path), files.CONFIGURATION)


def test_a_file_may_be_as_long_as_the_limit_and_the_head_of_a_longer_one_is_read(
    tmp_path: Path,
) -> None:
    path = tmp_path / "x"
    path.write_text("123456789")
    assert files.read_text(str(path), 9) == "123456789"
    make_huge(path)
    assert files.read_head(str(path), 5) == b"12345"


def test_neither_a_fifo_nor_a_device_is_opened_nor_read_if_it_takes_a_files_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening a FIFO would let its writer go on,
    who could then wait for a reader that never reads.
    """
    path, opens = tmp_path / "x", os.open
    opened = list[object]()

    def swap(name: str, flags: int) -> int:
        opened.append(name)
        path.unlink()
        os.mkfifo(path)
        return opens(name, flags)

    path.touch()
    monkeypatch.setattr(os, "open", swap)
    for name in (str(path), str(path), "/dev/zero"):
        with pytest.raises(Unreadable, match="not a regular file"):
            files.read(name, 9)
    assert opened == [str(path)]


def test_names_are_listed_up_to_a_bound(tmp_path: Path) -> None:
    make_crowded(tmp_path / "x")
    assert files.list_names(str(tmp_path / "x"), 4) == ["0", "1", "2", "3"]
    with pytest.raises(Unreadable, match="x/0: ENOTDIR"):
        files.list_names(str(tmp_path / "x/0"))
    for call, why in (
        (files.list_names, "more than 3 entries"),
        (files.match, "more than 3 entries"),
    ):
        with pytest.raises(Unreadable, match=why):
            call(str(tmp_path / "x" / ("*" if call is files.match else "")), 3)


def test_a_pattern_matches_as_in_go(tmp_path: Path) -> None:
    for name in ("a/.b/c", "a/d/c", "a/e"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    for pattern, expected in {
        "a/*/c": ["a/.b/c", "a/d/c"],
        "a/[^d]*": ["a/.b", "a/e"],
        "nothing/*": [],
        "no/pattern": ["no/pattern"],
    }.items():
        assert files.match(f"{tmp_path}/{pattern}") == [f"{tmp_path}/{name}" for name in expected]
    make_crowded(tmp_path / "x")
    make_crowded(tmp_path / "y")
    with pytest.raises(Unreadable, match="matches more files than 7"):
        files.match(f"{tmp_path}/[xy]/*", 7)
