# SPDX-License-Identifier: Apache-2.0
"""What the door does with each thing that a path may name."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hook.node import files as door
from hook.node.files import Budget, Tree, Unreadable


def make_huge(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


def make_crowded(path: Path) -> None:
    path.mkdir()
    for number in range(4):
        (path / str(number)).touch()


@pytest.fixture(params=["ours", "another"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Tree:
    """A tree whose paths are relative to a scratch directory: as its root, or as its current directory."""
    return Tree("", str(tmp_path)) if request.param == "ours" else Tree(str(tmp_path), "/")


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda _path: None, "ENOENT"),
        (os.mkfifo, "not a regular file"),
        (os.mkdir, "not a regular file"),
        (make_huge, "larger than 9 bytes"),
        (lambda path: path.symlink_to(path.name), "ELOOP"),
        (lambda path: path.write_bytes(b"\xff"), "not UTF-8 at byte 0"),
        (lambda path: path.write_text("["), "not JSON: no value at character 1"),
        (lambda path: path.write_text("0123456789"), "larger than 9 bytes"),
    ],
)
def test_what_cannot_be_read_is_one_kind_of_error_that_names_the_path(
    files: Tree, tmp_path: Path, make: Callable[[Path], object], why: str
) -> None:
    make(tmp_path / "x")
    with pytest.raises(Unreadable) as caught:
        files.read_json("x", 9)
    assert str(caught.value) == f"x: {why}"
    assert caught.value.is_missing is (why == "ENOENT")


@pytest.mark.parametrize("path", ["a\0b", "\ud800", "x" * 5000, "/dev/zero", "/dev/tty"])
def test_no_path_raises_another_error(path: str) -> None:
    with pytest.raises(Unreadable):
        door.read(path, 100)


def test_deep_json_is_one_kind_of_error(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("[" * 1_000_000)
    with pytest.raises(Unreadable, match="nested too deeply"):
        door.read_json(str(tmp_path / "x"), door.CONFIGURATION)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("x = ", r"not TOML: Invalid value \(at end of document\)"),
        ("x = 0000-00-00", "not TOML: "),
        ("x = " + "[" * 100_000, "not TOML: maximum recursion depth exceeded"),
    ],
)
def test_what_is_no_toml_is_one_kind_of_error(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "x").write_text(text)
    with pytest.raises(Unreadable, match=f"^x: {why}"):
        Tree("", str(tmp_path)).read_toml("x", door.CONFIGURATION)


def test_a_file_may_be_as_long_as_the_limit_and_its_head_is_read_whatever_its_size(files: Tree, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("123456789")
    assert files.read_text("x", 9) == "123456789"
    make_huge(tmp_path / "x")
    assert files.read_head("x", 5) == b"12345"


def test_a_fifo_is_not_opened(files: Tree, tmp_path: Path) -> None:
    """Opening it would let its writer go on, who could then wait for a reader that never reads."""
    os.mkfifo(tmp_path / "x")
    with pytest.raises(Unreadable):
        files.read("x", 9)
    with pytest.raises(OSError, match="No such device or address"):  # ENXIO: no process has it open
        os.open(tmp_path / "x", os.O_WRONLY | os.O_NONBLOCK)


@pytest.mark.parametrize("most", [4, 3])
def test_names_are_listed_up_to_a_bound(
    files: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(door, "NAMES", most)
    make_crowded(tmp_path / "x")
    if most == 4:
        assert files.list_names("x") == ["0", "1", "2", "3"]
    else:
        with pytest.raises(Unreadable, match="more than 3 entries"):
            files.list_names("x")
    with pytest.raises(Unreadable, match="x/0: "):
        files.list_names("x/0")


def test_a_pattern_matches_as_in_go(files: Tree, tmp_path: Path) -> None:
    for name in ("a/.b/c", "a/d/c", "a/e"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert files.match("a/*/c", Budget()) == ["a/.b/c", "a/d/c"]
    assert files.match("a/[^d]*", Budget()) == ["a/.b", "a/e"]
    assert files.match("nothing/*", Budget()) == []
    assert files.match("no/pattern", Budget()) == ["no/pattern"]


def test_patterns_share_a_budget(files: Tree, tmp_path: Path) -> None:
    make_crowded(tmp_path / "x")
    budget = Budget(9)
    assert len(files.match("x/*", budget)) == 4
    with pytest.raises(Unreadable, match="already match 9 names"):
        files.match("x/*", budget)


# --- Below another root


@pytest.mark.parametrize(
    ("link", "target", "path"),
    [
        ("up", "../../../etc", "/up/passwd"),
        ("up", "../../../etc", "/up/../up/passwd"),
        ("up", "/etc", "up/passwd"),
        ("etc/x", "/../../etc/passwd", "etc/x"),
        ("etc/x", "passwd", "../../../../etc/x"),
    ],
)
def test_no_link_leads_out_of_a_root(tmp_path: Path, link: str, target: str, path: str) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text("inside")
    (tmp_path / link).symlink_to(target)
    assert Tree(str(tmp_path)).read_text(path, 100) == "inside"


def test_a_relative_path_begins_at_the_directory_of_the_process(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "x").write_text("inside")
    assert Tree(str(tmp_path), "/work").read_text("../x", 100) == "inside"


def test_more_links_than_the_kernel_follows_are_an_error_and_not_followed_from_our_root(tmp_path: Path) -> None:
    (tmp_path / "0").symlink_to("/etc/passwd")
    for number in range(1, 42):
        (tmp_path / str(number)).symlink_to(str(number - 1))
    with pytest.raises(Unreadable, match="ELOOP"):
        Tree(str(tmp_path)).read("41", 1 << 20)


def test_a_device_below_a_root_is_not_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = list[str]()
    original: Callable[..., int] = os.open

    def note(path: str, *more: int, **by: int) -> int:
        opened.append(path)
        return original(path, *more, **by)

    monkeypatch.setattr(os, "open", note)
    with pytest.raises(Unreadable, match="not a regular file"):
        Tree("/dev").read("zero", 100)
    assert opened == ["/dev", "zero"], "to look at, not to read"


def test_a_file_is_looked_for_and_named_below_the_root(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    files = Tree(str(tmp_path))
    assert files.stat("/x") is not None
    assert files.stat("/y") is None
    assert files.at("/x") == f"{tmp_path}/x"
