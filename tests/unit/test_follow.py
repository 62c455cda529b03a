# SPDX-License-Identifier: Apache-2.0
"""`history --follow`: what comes to files over rotations, in the table and as JSON."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from hook.reconcile import rotate
from hook.show import Screen, follow
from tests.unit.lines import line, make, make_pod
from tests.unit.test_history import XZ


def read(follower: follow.Follower) -> list[int]:
    return [int(job["id"], 16) for job in follower.read()]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "history.jsonl"


def append(path: Path, content: bytes) -> None:
    with path.open("ab") as stream:
        stream.write(content)


def make_steps(file: Path) -> list[Callable[[], object]]:
    """What happens to a history, with the lines 2 to 7."""
    half, rest = line(make(3))[:50], line(make(3))[50:]
    late = file.open("ab", buffering=0)

    def write_late() -> None:
        late.write(line(make(4)))
        late.close()

    return [
        lambda: append(file, line(make(2)) + half),
        lambda: append(file, rest),
        lambda: rotate.rotate(str(file)),
        write_late,  # a hook had it open
        lambda: append(file, line(make(5))),
        lambda: rotate.rotate(str(file)),  # the first file is compressed
        lambda: append(file, line(make(6)) + line(make(7))),
        lambda: rotate.rotate(str(file)),
    ]


@pytest.mark.parametrize(("since", "first"), [("", []), ("2026-11-17T01:00:00Z", [1])])
def test_each_line_comes_once_whenever_it_is_looked_for_between_rotations(
    file: Path, monkeypatch: pytest.MonkeyPatch, since: str, first: list[int]
) -> None:
    monkeypatch.setattr(rotate, "LARGEST", 1)
    every = [*product([False, True], repeat=8)]
    for looks in every if not since else (every[0], every[-1]):
        for former in file.parent.iterdir():
            former.unlink()
        append(file, line(make(8, end="2026-11-16T01:00:00Z")) + line(make(1)))
        follower, found = follow.Follower([str(file)], since=since), []
        for step, is_looked_for in zip(make_steps(file), looks):
            step()
            if is_looked_for:
                found += read(follower)
        assert sorted(found + read(follower)) == [*first, 2, 3, 4, 5, 6, 7], looks
        assert read(follower) == []


def test_half_a_line_at_the_start_comes_whole(file: Path) -> None:
    append(file, line(make(1)) + line(make(2))[:-9])
    follower = follow.Follower([str(file)])
    assert read(follower) == []
    append(file, line(make(2))[-9:] + line(make(3))[:9])
    assert read(follower) == [2]


def test_compressed_files_of_the_start_are_not_read_and_those_that_come_are_to_their_ends(
    file: Path,
) -> None:
    file.with_name("history.jsonl.2.gz").write_bytes(gzip.compress(line(make(1))))
    follower = follow.Follower([str(file.parent)])
    file.with_name("history.jsonl.3.gz").write_bytes(gzip.compress(line(make(2)).rstrip()))
    assert (read(follower), read(follower)) == ([2], [])


def test_files_and_directories_that_come_later_are_read_from_their_begin(
    tmp_path: Path, complaints: list[str]
) -> None:
    places = [str(tmp_path / "a.jsonl"), str(tmp_path / "nodes")]
    follower = follow.Follower(places)
    assert complaints == [f"waiting for {place}: there is no such file yet" for place in places]
    assert read(follower) == []
    append(tmp_path / "a.jsonl", line(make(1)))
    (tmp_path / "nodes").mkdir()
    append(tmp_path / "nodes" / "n1.jsonl", line(make(2)))
    assert read(follower) == [1, 2]
    append(tmp_path / "nodes" / "n2.jsonl", line(make(3)))
    append(tmp_path / "nodes" / "sums.json", line(make(4)))
    assert (read(follower), len(complaints)) == ([3], 2)


def test_files_that_begin_with_blank_lines_are_not_taken_for_each_other(file: Path) -> None:
    append(file, b"\n" + line(make(1)) + line(make(2)))
    follower = follow.Follower([str(file)])
    file.rename(file.with_name("history.jsonl.1"))
    append(file, b"\n" + line(make(3)))
    assert read(follower) == [3]


def test_a_file_in_two_places_comes_once(file: Path) -> None:
    (file.parent / "link").symlink_to(file.parent)
    follower = follow.Follower([str(file), f"{file.parent}/link"], since="2026-11-17")
    append(file, line(make(1)))
    found = follower.read()
    assert int(next(found)["id"], 16) == 1
    append(file, line(make(2)))
    assert [int(job["id"], 16) for job in found] == [2]
    assert read(follower) == []


def test_a_file_that_is_cut_or_replaced_goes_on_from_there(file: Path) -> None:
    append(file, line(make(1)) + line(make(2)))
    follower = follow.Follower([str(file)])
    file.write_bytes(line(make(1)))
    assert read(follower) == []
    append(file, line(make(3)))
    assert read(follower) == [3]
    file.write_bytes(line(make(4)))
    assert read(follower) == [4]


def test_torn_lines_and_unreadable_files_are_said_once_and_cost_nothing_else(
    file: Path, complaints: list[str]
) -> None:
    append(file, line(make(1)))
    follower = follow.Follower([str(file)])
    append(file, line(make(2))[:-9] + line(make(3)) + b"torn\n\n" + line(make(4)))
    other = file.with_name("history.jsonl.7")
    other.write_bytes(XZ)
    assert (read(follower), read(follower)) == ([3, 4], [])
    assert complaints == [
        f"{other}: compressed by xz; only gzip can be read",
        f"skipped: 2 torn or unknown lines in {file}",
    ]


def test_names_and_labels_choose_and_since_is_only_about_what_was_there(file: Path) -> None:
    old = {"end": "2026-11-01T00:00:00Z"}
    jobs = [
        make_pod(1, "shop", "web"),
        make_pod(2, "shop", "db"),
        make_pod(3, "shop", "web", **old),
    ]
    append(file, b"".join(map(line, jobs)))
    follower = follow.Follower([str(file)], ["shop/web"], "2026-11-17T00:00:00Z")
    assert read(follower) == [1]
    append(file, b"".join(line({**job, "id": f"{at:016x}"}) for at, job in enumerate(jobs, 4)))
    assert read(follower) == [4, 6]
    labelled = follow.Follower([str(file)], labels={("user", "ann")})
    append(file, line(make(7, labels={"user": "ann"})) + line(make(8)))
    assert read(labelled) == [7]


def test_the_head_comes_again_with_each_screen_and_when_the_terminal_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(follow, "to_local", str)
    table, small, narrow = follow.Table(), Screen(80, 5), Screen(60, 5)
    jobs = [make(number, f"job-{number}") for number in range(1, 8)]
    said = [
        *table.format([], small),
        *table.format(jobs[:2], small),
        *table.format(jobs[2:], small),
    ]
    head = said[0]
    assert head.split() == ["NAME", "END", "SECONDS", "RUNS", "ENERGY(J)", "TRAFFIC(B)"]
    assert [text.split()[0] for text in said] == [
        *("NAME", "job-1", "job-2", "job-3"),
        *("NAME", "job-4", "job-5", "job-6"),
        *("NAME", "job-7"),
    ]
    assert {len(text) for text in said} == {len(head)}
    assert table.format([], small) == []
    (other,) = table.format([], narrow)
    assert (other.split()[0], len(other) <= 60) == ("NAME", True)
