# SPDX-License-Identifier: Apache-2.0
"""`history`: what is read of files that crashes, disks and rotation have been at,
and what is printed of it.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count, product
from pathlib import Path
from typing import Any

import pytest
from pyfakefs.fake_filesystem import FakeFilesystem

from hook import show, system
from hook.cli import command_line as cli
from hook.node import files, lines
from hook.node.models import Job
from hook.show import Screen, history
from tests.support import zones
from tests.unit.lines import FILE, NOW, line, make, make_pod, write_lines

Print = Callable[..., str]
EUROPE = "CET-1CEST,M3.5.0,M10.5.0/3"
"""An hour before UTC, and two in summer: a zone of TZ that needs no file."""


@pytest.fixture(autouse=True)
def zone() -> Iterator[None]:
    """Local time after a test is what it was before."""
    with pytest.MonkeyPatch.context() as patched:
        set_zone(patched, "UTC0")
        yield
    time.tzset()


def set_zone(patched: pytest.MonkeyPatch, zone: str) -> None:
    patched.setenv("TZ", zone)
    time.tzset()


@pytest.fixture
def shown(
    fs: FakeFilesystem, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Print:
    """What `history` prints with these arguments; in another case than `status` 0 nothing."""
    assert fs is not None
    monkeypatch.setattr(system, "unix_time", lambda: NOW)

    def show(*arguments: str, status: int = 0) -> str:
        assert cli.main(["history", *arguments]) == status
        return capsys.readouterr().out

    return show


MISSED = {2: "no_rmids", 3: "io", 4: "no_rmids"}


def read() -> tuple[list[int], history.Jobs]:
    """Read the history; return the numbers of its jobs, and what else is known of it."""
    with history.Jobs([str(FILE)]) as jobs:
        return sorted(jobs.collect(lambda jobs: [int(job["id"], 16) for _, job in jobs])), jobs


# --- Lines

WHOLE = line(make(1))
LINES: list[tuple[str, bytes, list[int], int]] = [
    ("whole", WHOLE, [1], 0),
    ("without an end", WHOLE.rstrip(), [1], 0),
    ("compact", json.dumps(make(1), separators=(",", ":")).encode(), [1], 0),
    ("with fields of a later version", line({**make(1), "colour": {"red": 2}}), [1], 0),
    ("blank", b"\n \n" + WHOLE + b"\n", [1], 0),
    ("of a later version", line({**make(1), "version": 2}), [], 1),
    ("torn", WHOLE[:-30], [], 1),
    ("torn, then a whole", WHOLE[:-30] + b"\n" + line(make(2)), [2], 1),
    ("torn, with a whole glued to it", WHOLE[:-30] + line(make(2)), [2], 1),
    ("whole, with a torn glued to it", WHOLE.rstrip() + line(make(2))[:50], [1], 1),
    ("two, glued", WHOLE.rstrip() + line(make(2)), [1, 2], 0),
    ("a torn, twice glued", WHOLE[:40] + WHOLE[:-9] + line(make(2)), [2], 1),
    ("zeros of a crashed disk", b"\0" * 512 + WHOLE, [1], 1),
    ("zeros between", WHOLE.rstrip() + b"\0" * 512 + line(make(2)), [1, 2], 0),
    ("foreign JSON", b'{"a": 1}\n[]\nnull\n"x"\n' + WHOLE, [1], 4),
    ("not UTF-8", b"\xff\xfe\n" + WHOLE, [1], 1),
    ("too deep", b"[" * 100_000 + b"\n" + WHOLE, [1], 1),
    (
        "a number of absurd length",
        line(make(1)).replace(b"12.5", b"1" * 5000) + line(make(2)),
        [2],
        1,
    ),
    ("infinite", line(make(1)).replace(b"2.5,", b"1e999,") + line(make(2)), [2], 1),
    ("negative", line(make(1, use={"core_energy": -1})), [], 1),
    ("not a time", line(make(1, end="=NOW()")), [], 1),
    ("a name that looks like a line", line(make(1, 'x{"version":1,"id":"9"}')), [1], 0),
    ("the same name, torn", line(make(1, 'x{"version":1,"id":"9"}'))[:-20] + line(make(2)), [2], 1),
    ("too long", b"x" * (3 * lines.LINE) + b"\n" + WHOLE, [1], 1),
    ("too long, with a whole glued to it", b"x" * (5 * lines.LINE) + WHOLE, [1], 1),
    ("a label that is called version", line(make(1, labels={"version": "1"})), [1], 0),
    (
        "the same, torn, with a whole glued to it",
        line(make(1, labels={"version": "1"}))[:-20] + WHOLE,
        [1],
        1,
    ),
    ("an event without a name", line(make(1, use={"": 5.0})), [1], 0),
]


@pytest.mark.usefixtures("fs")
@pytest.mark.parametrize(
    ("content", "counts", "skipped"), [row[1:] for row in LINES], ids=[row[0] for row in LINES]
)
@pytest.mark.parametrize("name", ["history.jsonl", "history.jsonl.1.gz"])
def test_what_can_be_read_of_lines_counts_and_the_rest_is_counted(
    content: bytes, counts: list[int], skipped: int, name: str
) -> None:
    write_lines(name, content)
    numbers, read_ = read()
    expected = (skipped, []) if counts else (0, [f"{name}: none of its lines can be read"])
    assert (numbers, sum(read_.skipped.values()), read_.problems) == (counts, *expected)


def test_a_long_line_takes_little_memory() -> None:
    stream = io.BytesIO(b"x" * (100 * lines.LINE) + b"\n" + WHOLE)
    assert [len(part) for part in lines.read_lines(stream)] == [2 * lines.LINE, len(WHOLE), 0]


# --- Files


XZ, ZSTD = bytes.fromhex("fd377a585a000004"), bytes.fromhex("28b52ffd04580000")


@pytest.mark.parametrize(
    "name", ["history.jsonl.1", "history.jsonl.2.gz", "history.jsonl.12.gz", "history.jsonl.130"]
)
@pytest.mark.parametrize("has_current", [True, False])
def test_rotated_files_are_read_by_their_names(shown: Print, name: str, has_current: bool) -> None:
    write_lines(name, line(make(1)), at=NOW - 1)
    write_lines("history.jsonl" if has_current else name, line(make(2 if has_current else 1)))
    assert "skipped" not in shown()
    assert read()[0] == [1, 2][: 1 + has_current]


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("history.jsonl.3", ZSTD, "compressed by zstd; only gzip can be read"),
        ("history.jsonl.13.gz", b"BZh91AY&SY", "compressed by bzip2; only gzip can be read"),
        ("history.jsonl.2", XZ, "compressed by xz; only gzip can be read"),
        ("history.jsonl.1.gz", b"no gzip", "none of its lines can be read"),
        ("history.jsonl.1.gz", b"", "empty, and no file of gzip"),
    ],
)
@pytest.mark.parametrize("form", ["", "--json", "--csv", "--by=day"])
def test_a_file_beside_the_history_that_is_not_read_is_named_with_status_1(
    shown: Print, complaints: list[str], name: str, content: bytes, why: str, form: str
) -> None:
    write_lines("history.jsonl", line(make(1, "job-17", end="2026-11-17T01:02:03Z")))
    FILE.with_name(name).write_bytes(content)
    output = shown(*form.split(), status=1)
    assert f"{name}: {why}" in "\n".join([output, *complaints])
    assert "2026-11-17" in output
    assert shown("nosuch", *form.split(), status=2) == ""
    assert f"matches 'nosuch'; skipped: {name}: {why}" in complaints[-1]


@pytest.mark.parametrize(
    "name",
    [
        "other.jsonl",
        "history.jsonlx",
        "history.jsonl.old",
        "history.jsonl.gz",
        ".history.jsonl.2.gz.tmp",
        "sums.json",
    ],
)
def test_a_file_with_another_name_is_neither_read_nor_named(shown: Print, name: str) -> None:
    write_lines(name, line(make(2)))
    with pytest.raises(files.Unreadable, match="no such file"):
        read()
    write_lines("history.jsonl", line(make(1)))
    assert "skipped" not in shown()
    assert read()[0] == [1]


CUT = "Compressed file ended before the end-of-stream marker was reached"
DAMAGED: dict[str, tuple[bytes, str]] = {
    "cut short": (gzip.compress(line(make(1)) + line(make(2)))[:-4], CUT),
    "cut in its head": (gzip.compress(b"")[:5], CUT),
    "garbage behind": (
        gzip.compress(line(make(1)) + line(make(2))) + b"garbage",
        "not read to its end: Not a gzipped file",
    ),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_file_is_named_and_loses_nothing_of_others(shown: Print, case: str) -> None:
    content, problem = DAMAGED[case]
    write_lines("history.jsonl.2.gz", b"")
    FILE.with_name("history.jsonl.2.gz").write_bytes(content)
    write_lines("history.jsonl.1", line(make(3)))
    write_lines("history.jsonl", b"torn\n" + line(make(4)))
    answer = json.loads(shown("--json", status=1))
    first = [1, 2] if gzip.compress(b"")[:3] == content[:3] and len(content) > 20 else []
    assert [int(job["id"], 16) for job in answer["jobs"]] == [*first, 3, 4]
    (said,) = answer["problems"]
    assert (answer["skipped"], said.startswith("history.jsonl.2.gz: "), problem in said) == (
        1,
        True,
        True,
    )
    assert (
        shown(status=1).splitlines()[-1]
        == f"skipped: 1 torn or unknown line in history.jsonl; {said}"
    )


@pytest.mark.usefixtures("fs")
def test_members_of_gzip_and_zeros_behind_them_are_read_and_what_is_no_file_is_named(
    fs: FakeFilesystem,
) -> None:
    write_lines("history.jsonl.1.gz", b"")
    content = (
        gzip.compress(line(make(1))) + gzip.compress(line(make(2)) + line(make(3))) + b"\0" * 100
    )
    FILE.with_name("history.jsonl.1.gz").write_bytes(content)
    numbers, jobs = read()
    assert (numbers, jobs.explain()) == ([1, 2, 3], "")
    fs.create_dir(FILE.with_name("history.jsonl.2"))
    numbers, jobs = read()
    assert (numbers, jobs.problems) == ([1, 2, 3], ["history.jsonl.2: not a regular file"])


@pytest.mark.parametrize("reads", range(1, 8))
@pytest.mark.parametrize("form", ["--json", "--json --by=name"])
def test_what_rotation_renames_before_any_of_the_reads_is_read(
    shown: Print, monkeypatch: pytest.MonkeyPatch, reads: int, form: str
) -> None:
    """The file is renamed and the oldest compressed after the names were listed.

    The rows take some reads of each.
    """
    write_lines("history.jsonl.1", line(make(1, "a")), at=NOW - 10)
    write_lines("history.jsonl", line(make(2, "b", end="2026-11-17T01:02:04Z")))
    calls = count(1)

    def rotate_before(call: Callable[..., Any]) -> Callable[..., Any]:
        def rotate(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401
            if next(calls) == reads:
                write_lines(
                    "history.jsonl.2.gz",
                    FILE.with_name("history.jsonl.1").read_bytes(),
                    at=NOW - 10,
                )
                FILE.rename(FILE.with_name("history.jsonl.1"))
                write_lines("history.jsonl", b"")
            return call(*arguments, **named)

        return rotate

    for name in ("_open", "_read_parts"):
        monkeypatch.setattr(history, name, rotate_before(getattr(history, name)))
    answer = json.loads(shown(*form.split()))
    assert [row["name"] for row in answer.get("jobs", answer.get("sums"))] == ["a", "b"]
    assert (answer["total"]["jobs"], answer["problems"]) == (2, [])


BILLS = Path("/srv/bills")
HISTORIES = {
    "n1/history.jsonl": 1,
    "n1/history.jsonl.1": 2,
    "n1/history.jsonl.2.gz": 3,
    "n2/history.jsonl.1": 4,
    "n2/.history.jsonl.2.gz.tmp": 5,
    "n2/sums.json": 6,
    "a.jsonl": 7,
    "a.jsonl.12.gz": 8,
    "b[1].jsonl": 9,
    "b1.jsonl": 10,
    "c.log": 11,
    "c.log.1": 12,
    "sums.json": 13,
}


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        (["n1"], [1, 2, 3]),
        (["n1/", "n1/history.jsonl", "n1/history.jsonl.1"], [1, 2, 3]),
        (["n1/history.jsonl.1"], [2]),
        (["n2"], [4]),
        (["."], [7, 8, 9, 10]),
        (["*"], [1, 2, 3, 4, 7, 8, 9, 10]),
        (["*/*.jsonl"], [1, 2, 3]),
        (["n*"], [1, 2, 3, 4]),
        (["b[1].jsonl"], [9]),
        (["b[1]*", "c.log"], [10, 11, 12]),
    ],
)
def test_a_place_is_a_file_with_its_rotated_ones_a_directory_or_a_pattern(
    shown: Print, places: list[str], expected: list[int]
) -> None:
    for at, (name, number) in enumerate(HISTORIES.items()):
        write_lines(str(BILLS / name), line(make(number, end=f"2026-11-17T01:02:{50 - at}Z")))
    paths = [f"{BILLS}/{place}" for place in places]
    answer = json.loads(shown("--json", *map("--history={}".format, paths)))
    assert sorted(int(job["id"], 16) for job in answer["jobs"]) == expected
    assert [job["end"] for job in answer["jobs"]] == sorted(job["end"] for job in answer["jobs"])
    assert (answer["files"], answer["total"]["jobs"], answer["problems"]) == (
        paths,
        len(expected),
        [],
    )


def test_a_problem_names_the_file_with_its_directory_if_there_are_several_histories(
    shown: Print,
) -> None:
    write_lines(f"{BILLS}/n1/history.jsonl", line(make(1)) + b"torn")
    write_lines(f"{BILLS}/n2/history.jsonl", XZ)
    answer = json.loads(shown("--json", f"--history={BILLS}/*", status=1))
    assert (answer["skipped"], answer["problems"]) == (
        1,
        [f"{BILLS}/n2/history.jsonl: compressed by xz; only gzip can be read"],
    )
    assert f"1 torn or unknown line in {BILLS}/n1/history.jsonl" in shown(
        f"--history={BILLS}/*", status=1
    )


def test_more_files_are_read_than_the_soft_limit_of_open_files_allows(tmp_path: Path) -> None:
    for number in range(200):
        (tmp_path / f"n{number}.jsonl").write_bytes(line(make(number)))
    code = (
        "import resource, sys; from hook.show import history\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (128, "
        "resource.getrlimit(resource.RLIMIT_NOFILE)[1]))\n"
        "with history.Jobs(sys.argv[1:]) as jobs: print(len(jobs.collect(list)), jobs.problems)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True
    )
    assert done.stdout == "200 []\n"


LATER, EARLIER = "2026-11-17T01:05:00Z", "2026-11-17T00:05:00Z"


@pytest.mark.parametrize(
    "form", ["", "--by=day", "--sort=start", "--since=2026-11-17T01:00", "--limit=1"]
)
def test_of_the_lines_with_an_id_the_last_in_the_file_counts(shown: Print, form: str) -> None:
    """Also if the clock was set back between them, or if the last one is in a later file."""
    for ends in product(["", LATER, EARLIER], repeat=3):
        jobs = [
            line(make(1, use={"core_energy": use}, end=end)) if end else b""
            for use, end in enumerate(ends, 1)
        ]
        write_lines("history.jsonl.1", jobs[0])
        write_lines(
            "history.jsonl", line(make(2, use={}, end=LATER)) + jobs[1] + jobs[2], at=NOW - 10
        )
        answer = json.loads(shown("--json", *form.split()))
        use, end = max(((use, end) for use, end in enumerate(ends, 1) if end), default=(0, ""))
        is_there = end > ("2026-11-17T01:00" if "since" in form else "")
        assert answer["total"]["jobs"] == 1 + is_there, ends
        assert answer["total"]["use"] == ({"core_energy": use} if is_there else {}), ends


@pytest.mark.parametrize("form", ["", "--by=node", "--until=2026-11-17T01:03"])
@pytest.mark.parametrize(
    ("stamps", "counts"),
    [
        (("3", "2", "1"), 0),
        (("1", "3", "2"), 1),
        (("2", "2", "1"), 1),
        (("", "3", "2"), 1),
        (("3", "", "2"), 2),
    ],
)
def test_of_the_lines_with_a_node_and_an_id_that_one_counts_which_was_written_last(
    shown: Print, form: str, stamps: tuple[str, ...], counts: int
) -> None:
    """Also if that line is not selected."""
    jobs = [
        make(
            1,
            use={"core_energy": use},
            written=second and f"2026-11-17T01:02:0{second}.000000Z",
            end=end,
        )
        for use, (second, end) in enumerate(zip(stamps, (LATER, make(1)["end"], make(1)["end"])), 1)
    ]
    write_lines(
        "history.jsonl", b"".join(map(line, [*jobs, make(1, node="n2", use={"core_energy": 100})]))
    )
    total = json.loads(shown("--json", *form.split()))["total"]
    known = 0 if form.startswith("--until") and not counts else counts + 1
    assert (total["jobs"], total["use"]) == (1 + bool(known), {"core_energy": known + 100})


# --- Which jobs

SOME = [
    make(1, "job-17"),
    make(2, "job-170", end="2026-11-18T11:00:00Z"),
    make(3, "db", pod="stack"),
    make_pod(4, "shop", "web-0"),
    make_pod(5, "shop", "cart-0"),
    make_pod(6, "batch", "web-0", end="2026-11-01T00:00:00Z"),
]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("", [6, 1, 3, 4, 5, 2]),
        ("job-17", [1]),
        ("job-17 db", [1, 3]),
        ("stack", [3]),
        ("stack/db", [3]),  # as `list` and `history` show it
        ("shop/web-0", [4]),
        ("000000000003", [3]),
        (make(3)["key"], [3]),
        ("--since=2026-11-17", [1, 3, 4, 5, 2]),
        ("--since=2026-11-18T11:00", [2]),
        ("--since=2026-11-18T11:00:01Z", []),
        ("--since=10m", [2]),
        ("--since=399s", []),
        ("--since=1h", [2]),
        ("--since=999999999w", [6, 1, 3, 4, 5, 2]),
        ("job-17 --since=1h", []),
        ("--until=2026-11-17", [6, 1, 3, 4, 5]),  # that day, too
        ("--until=2026-11-17T01:02:03", [6]),  # before, not at
        ("--since=2026-11-17 --until=2026-11-17", [1, 3, 4, 5]),
        ("--since=yesterday --until=yesterday", [1, 3, 4, 5]),
        ("--since=today", [2]),
        ("--limit=2", [5, 2]),
        ("--until=yesterday --limit=2", [4, 5]),
    ],
)
def test_names_and_times_choose_jobs(shown: Print, arguments: str, expected: list[int]) -> None:
    write_lines("history.jsonl", b"".join(map(line, SOME)))
    answer = json.loads(shown("--json", *arguments.split()))
    assert [int(job["id"], 16) for job in answer["jobs"]] == expected
    most = len(expected) if "--limit" not in arguments else 5 if "--until" in arguments else 6
    assert answer["total"] is None if not expected else answer["total"]["jobs"] == most


LABELLED = [
    make(1, "a", labels={"user": "alice", "project": "x y"}),
    make(2, "b", labels={"user": "bob", "name": "night", "jobs": "7"}),
    make(3, "a", labels={"user": "alice", "project": "=z"}),
    make(4, "a"),
]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--label=user=alice", [1, 3]),
        ("--label=user=alice --label=project==z", [3]),
        ("--label=user=alice --label=name=night", []),
        ("--label=user=carol", []),
        ("a --label=name=night", []),
    ],
)
def test_labels_choose_jobs(shown: Print, arguments: str, expected: list[int]) -> None:
    write_lines("history.jsonl", b"".join(map(line, LABELLED)))
    answer = json.loads(shown("--json", *arguments.split()))
    assert [int(job["id"], 16) for job in answer["jobs"]] == expected
    wanted = [
        word.removeprefix("--label=") for word in arguments.split() if word.startswith("--label=")
    ]
    assert [f"{name}={text}" for name, text in answer["labels"].items()] == wanted


def test_csv_has_a_column_for_each_label(shown: Print) -> None:
    write_lines("history.jsonl", b"".join(map(line, LABELLED)))
    rows = [*csv.DictReader(io.StringIO(shown("--csv")))]
    columns = ["label_jobs", "label_name", "label_project", "label_user"]
    assert [column for column in rows[0] if column.startswith("label_")] == columns
    assert [row["label_user"] for row in rows] == ["alice", "bob", "alice", ""]
    assert [row["label_project"] for row in rows] == ["x y", "", "'=z", ""]
    for by, column, sums in (
        ("user", "label_user", {"": "1", "alice": "2", "bob": "1"}),
        ("jobs", "label_jobs", {"": "3", "7": "1"}),
        ("name", "name", {"a": "3", "b": "1"}),
    ):
        rows = [*csv.DictReader(io.StringIO(shown("--csv", f"--by={by}")))]
        assert {row[column]: row["jobs"] for row in rows} == sums


USED = [
    make(1, "a", begin="2026-11-17T00:00:02Z", use={"core_energy": 2.5, "mbm_total_bytes": 1024}),
    make(2, "b", begin="2026-11-17T00:00:03Z", use={"core_energy": 2.5, "mbm_total_bytes": 2048}),
    make(3, "c", begin=None, use={"mbm_total_bytes": 4096}),
    make(4, "d", begin="2026-11-17T00:00:01Z", use={"core_energy": 1e9}, unknown=["core_energy"]),
    make(5, "a", begin="2026-11-17T00:00:04Z", use={"core_energy": 7.0, "mbm_total_bytes": 1}),
]


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ("--sort=energy", "d a b a c"),
        ("--sort=traffic", "c b a a d"),
        ("--sort=start", "a b a d c"),
        ("--sort=energy --limit=2", "d a"),
        ("--sort=start --limit=1", "a"),
        ("--by=name --sort=energy", "d a b c"),
        ("--by=name --sort=traffic", "c b a d"),
        ("--by=name --sort=start", "a b d c"),
        ("--by=name --limit=3", "b c d"),
        ("--by=name --sort=traffic --limit=1", "c"),
    ],
)
def test_rows_are_sorted_and_limited_in_all_forms(shown: Print, arguments: str, names: str) -> None:
    """What is known counts. The total is of all, and the table says how many rows there are."""
    write_lines("history.jsonl", b"".join(map(line, USED)))
    words, expected = arguments.split(), names.split()
    answer = json.loads(shown("--json", *words))
    assert [row["name"] for row in answer.get("jobs", answer.get("sums"))] == expected
    assert answer["total"]["jobs"] == len(USED)
    assert [row["name"] for row in csv.DictReader(io.StringIO(shown("--csv", *words)))] == expected
    rows = shown(*words).splitlines()
    assert [row.split()[0] for row in rows[1:][: len(expected)]] == expected
    count = 4 if "--by" in arguments else 5
    assert (f"{len(expected)} of {count} shown" in rows) == (len(expected) < count)
    assert rows[1 + len(expected)].startswith("total")


# --- Times

SUMMER = 1_784_325_600.0
"""2026-07-17T22:00:00Z, which is midnight in Europe"""


@pytest.mark.parametrize(
    ("text", "now", "begin", "end"),
    [
        ("90s", NOW, "2026-11-18T11:05:10Z", None),
        ("today", NOW, "2026-11-17T23:00:00Z", "2026-11-18T23:00:00Z"),
        ("yesterday", NOW, "2026-11-16T23:00:00Z", "2026-11-17T23:00:00Z"),
        ("last night", NOW, "2026-11-17T17:00:00Z", "2026-11-18T07:00:00Z"),
        ("today", SUMMER - 1, "2026-07-16T22:00:00Z", "2026-07-17T22:00:00Z"),
        ("today", SUMMER, "2026-07-17T22:00:00Z", "2026-07-18T22:00:00Z"),
        ("2026-10-25", NOW, "2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z"),  # of 25 hours
        ("2026-03-29", NOW, "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z"),  # of 23
        ("2026-11-24T18:30", NOW, "2026-11-24T17:30:00Z", None),
        ("2026-11-24T18:30:05", NOW, "2026-11-24T17:30:05Z", None),
        ("2026-11-24T18:30Z", NOW, "2026-11-24T18:30:00Z", None),
        ("2026-11-24T18:30-08:00", NOW, "2026-11-25T02:30:00Z", None),
    ],
)
def test_a_time_is_local_and_a_day_or_a_night_has_a_begin_and_an_end(
    monkeypatch: pytest.MonkeyPatch, text: str, now: float, begin: str, end: str | None
) -> None:
    set_zone(monkeypatch, EUROPE)
    assert history.parse_time("--since", text, now) == begin
    assert history.parse_time("--until", text, now) == (end or begin)


def test_a_day_begins_with_its_first_moment_where_clocks_skip_midnight_or_show_it_twice(
    pyz: Path,
) -> None:
    """The C library answers, whatever Python asks.

    That of the ELF file is in fuse/test_native.py.
    """
    command = [
        sys.executable,
        "-IS",
        "-c",
        f"import sys; sys.path.insert(0, {str(pyz)!r})\n{zones.CODE}",
    ]
    done = subprocess.run(
        command, input=zones.make_input(), capture_output=True, text=True, check=True, timeout=300
    )
    assert zones.find_wrong(done.stdout) == {}


def test_screens_have_local_times_with_their_zone_and_programs_get_utc(
    shown: Print, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a screen shows is a TIME, too."""
    set_zone(monkeypatch, EUROPE)
    write_lines(
        "history.jsonl",
        line(make(1, end="2026-11-16T23:30:00Z")) + line(make(2, end="2026-10-01T00:00:00Z")),
    )
    lines = shown("--since=2026-10-01", "--until=2026-11-17").splitlines()
    assert [row.split()[1] for row in lines[1:3]] == [
        "2026-10-01T02:00:00+02:00",
        "2026-11-17T00:30:00+01:00",
    ]
    since, until = "2026-10-01T00:00:00+02:00", "2026-11-18T00:00:00+01:00"
    assert lines[-1] == f"ended at or after {since} and before {until}"
    assert shown(f"--since={since}", f"--until={until}").splitlines() == lines
    answer = json.loads(shown(f"--since={since}", "--json"))
    assert (answer["since"], answer["until"]) == ("2026-09-30T22:00:00Z", None)
    assert [job["end"] for job in answer["jobs"]] == [
        "2026-10-01T00:00:00Z",
        "2026-11-16T23:30:00Z",
    ]
    assert [row["name"] for row in json.loads(shown("--by=day", "--json"))["sums"]] == [
        "2026-10-01",
        "2026-11-17",
    ]


def test_an_end_that_is_no_day_is_shown_as_it_is(shown: Print) -> None:
    write_lines("history.jsonl", line(make(1, end="2026-02-30T00:00:00Z")))
    assert "2026-02-30T00:00:00Z" in shown()
    assert shown("--by=day").splitlines()[1].startswith("2026-02-30")


def test_a_later_line_of_a_job_decides_whether_it_ended_in_time(shown: Print) -> None:
    """A crash came between the two."""
    write_lines("history.jsonl", line(make(1)) + line(make(1, end="2026-11-18T01:00:00Z")))
    assert json.loads(shown("--json", "--until=yesterday"))["jobs"] == []


@pytest.mark.parametrize(
    ("by", "names"),
    [
        ("name", ["batch/web-0", "job-17", "job-170", "shop/cart-0", "shop/web-0", "stack/db"]),
        ("pod", [None, "batch/web-0", "shop/cart-0", "shop/web-0", "stack"]),
        ("namespace", [None, "batch", "shop"]),
        ("day", ["2026-11-01", "2026-11-17", "2026-11-18"]),
        ("user", [None, "bob"]),
    ],
)
def test_sums_are_by_name_pod_namespace_day_or_label(
    shown: Print, by: str, names: list[str | None]
) -> None:
    write_lines(
        "history.jsonl",
        b"".join(map(line, [*SOME, make(7, "job-17", labels={"user": "bob", "pod": "x"})])),
    )
    assert [row["name"] for row in json.loads(shown("--json", f"--by={by}"))["sums"]] == names


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("job-1 nosuch", "matches 'job-1' (did you mean job-17?), 'nosuch'"),
        # Which only begins so.
        ("job-1", "no job in /var/log/resctrl-mon-hook/history.jsonl matches 'job-1'"),
        ("17", "matches '17' (did you mean job-17?)"),
        ("0", "matches '0' (did you mean web-0?)"),
        ("card-0", "matches 'card-0' (did you mean cart-0?)"),
        ("web[0", "history.jsonl matches 'web[0' (did you mean web-0?)"),
        ("--history=", "--history: no file"),
        ("nosuch", "no job in /var/log/resctrl-mon-hook/history.jsonl matches 'nosuch'"),
        ("--since=soon", "--since: 'soon' is no time; use an age (90s, "),
        ("--since=2026-02-30", "--since: '2026-02-30' is no time; use an age (90s, "),
        (
            "--history=/nowhere/history.jsonl",
            "cannot read /nowhere/history.jsonl: there is no such file; a hook with",
        ),
        (
            f"--history={FILE} --history=/nowhere/*",
            "cannot read /nowhere/*: there is no such file; ",
        ),
        ("--history=/var/log", "cannot read /var/log: no *.jsonl is in it; "),
        (f"--history={FILE} --history=", "--history: no file"),
        ("--since=2026-11-24Z", 'today, yesterday or "last night"'),
        ("--since=0001-01-01", "--since: '0001-01-01' is no time"),
        ("--until=9999-12-31", "--until: '9999-12-31' is no time"),
        ("--until=", "--until: '' is no time"),
        (
            "--since=1h --until=2h",
            "--since, 2026-11-18T10:06:40Z, is not before --until, 2026-11-18T09:06:40Z",
        ),
        ("--by=na-me", "--by: 'na-me': not a label's name"),
        ("--label=user", "--label: 'user' is not K=V"),
        (
            "--follow --by=day --limit=1 --csv",
            "--follow prints each job as it ends, without --by and --limit and --csv",
        ),
        ("--csv --json", "argument --json: not allowed with argument --csv"),
    ],
)
def test_what_cannot_be_answered_is_one_line(
    shown: Print, complaints: list[str], arguments: str, problem: str
) -> None:
    write_lines("history.jsonl", b"".join(map(line, SOME)))
    assert shown(*arguments.split(), status=2) == ""
    (said,) = complaints
    assert problem in said


# --- What is printed


@pytest.mark.parametrize(
    ("job", "name"),
    [
        (make(1, "job-17"), "job-17"),
        (make(1), "000000000001"),
        (make(1, "db", pod="stack"), "stack/db"),
        (make(1, "db", kind="sandbox", pod="stack"), "stack"),
        (make(1, "db", kind="sandbox"), "db"),
        (
            make(
                1,
                "",
                kind="sandbox",
                containers=[{"id": "a", "name": "x"}, {"id": "b", "name": "y"}],
            ),
            "x,y",
        ),
        (make_pod(1, "shop", "web-0"), "shop/web-0"),
        (make(1, "app", namespace="shop", pod="web-0"), "shop/web-0/app"),
        (
            make(1, kind="pod", key="87a3fb58-4084-4186-9c0e-93cf8c32e2ce"),
            "87a3fb58-4084-4186-9c0e-93cf8c32e2ce",
        ),
        (make(1, containers=[]), "000000000001"),
    ],
)
def test_a_job_has_a_name(job: dict[str, Any], name: str) -> None:
    parsed = lines.parse(line(job))
    assert parsed is not None
    assert history.name_job(parsed) == name


def test_marks_say_what_is_unknown(shown: Print) -> None:
    write_lines("history.jsonl", line(make(1, "part", unknown=["core_energy"])))
    write_lines(
        "history.jsonl.1", line(make(2, "none", use={}, unknown=["core_energy"], seconds=None))
    )
    rows = {row[0]: row for row in map(str.split, shown().splitlines()) if row}
    assert rows["part"][3:] == [">=2.50", "1.00Ki"]
    assert rows["none"][2:] == ["?", "?", "-"]
    assert rows["total"][1:] == [">=12.5", ">=2.50", "1.00Ki"]


def test_runs_are_shown_if_a_line_joins_some_and_the_terminal_has_room(
    shown: Print, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_lines("history.jsonl", line(make(1)))
    assert "RUNS" not in shown()
    write_lines("history.jsonl", line(make(1)) + line(make(2, runs=3)))
    assert [row.split()[3] for row in shown().splitlines()[:3]] == ["RUNS", "1", "3"]
    monkeypatch.setattr(show, "get_screen", lambda: Screen(40))
    assert shown().splitlines()[0].split() == ["NAME", "SECONDS", "ENERGY(J)"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--by=user", ""),
        ("--by=day --since=2h", ""),
        ("--by=user --since=2h", ""),  # that no job of that time has
        ("--label=user=carol", ""),
        ("--by=usr", "has a label 'usr' (did you mean user?)"),
        ("--by=dayy", "has a label 'dayy' (did you mean day?)"),
        ("--label=colour=red", "has a label 'colour'"),
        (
            "nosuch a --by=projct",
            "matches 'nosuch' or has a label 'projct' (did you mean project?)",
        ),
    ],
)
@pytest.mark.parametrize("form", ["", "--json", "--csv"])
def test_a_label_that_no_job_has_is_said_beside_the_rows_with_status_2(
    shown: Print, complaints: list[str], arguments: str, said: str, form: str
) -> None:
    write_lines("history.jsonl", b"")
    assert (shown("--by=usr", *form.split()) != "", complaints) == (True, []), "there is no job"
    write_lines("history.jsonl", b"".join(map(line, LABELLED)))
    assert shown(*arguments.split(), *form.split(), status=2 if said else 0) != ""
    assert complaints == ([f"no job in {FILE} {said}"] if said else [])


FORMULAS = ["=1+1", "+1", "-1", "@SUM(A1)", "\uff1d1+1", " \uff20SUM(A1)", "\t=1", "\r=1", " =1"]
HOSTILE = [*FORMULAS, "a\nb", 'a","b', "\x1b[2J", "\u202ex", "x" * 5000]


def test_no_text_of_a_tenant_is_a_formula_or_a_control_character(shown: Print) -> None:
    for name, by in product(
        HOSTILE, ((), ("--by=name",), ("--by=pod",), ("--by=namespace",), ("--by=user",))
    ):
        write_lines(
            "history.jsonl",
            line(make(1, name, labels={"user": name})) + line(make_pod(2, name, name)),
        )
        text = shown("--csv", *by)
        assert text.replace("\n", "").isprintable()
        head, *rows = csv.reader(io.StringIO(text))
        assert [len(row) for row in rows] == [len(head)] * 2
        assert [
            cell for row in rows for cell in row if cell.lstrip()[:1] in (*"=+-@\t\r\uff1d\uff20",)
        ] == []
        assert shown(*by).replace("\n", "").isprintable()


def test_csv_has_a_name_in_utf_8_as_it_is(shown: Print) -> None:
    name = "m\xfcller-\u5b57"
    write_lines("history.jsonl", line(make(1, name, labels={"user": name})))
    (row,) = csv.DictReader(io.StringIO(shown("--csv")))
    (job,) = json.loads(shown("--json"))["jobs"]
    assert row["name"] == job["name"] == row["label_user"] == name


def test_csv_has_a_column_for_each_event_and_exact_numbers(
    shown: Print, complaints: list[str]
) -> None:
    use = {"core_energy": 12.345678, "mbm_total_bytes": 2**60, "later_event": 7}
    write_lines(
        "history.jsonl",
        line(make(1, "job-17", use=use, unknown=["mbm_total_bytes"])) + line(make(2)) + b"torn",
    )
    first, second = csv.DictReader(io.StringIO(shown("--csv")))
    assert {event: first[event] for event in use} == {
        event: str(value) for event, value in use.items()
    }
    assert (first["unknown"], first["seconds"], first["runs"]) == ("mbm_total_bytes", "12.5", "1")
    assert (second["later_event"], second["name"]) == ("", "000000000002")
    assert complaints == ["skipped: 1 torn or unknown line in history.jsonl"]


def test_what_was_not_metered_is_counted_by_reason_below_the_total_and_in_each_form(
    shown: Print,
) -> None:
    missed = [
        make(number, use={}, unknown=["core_energy"], reason=reason)
        for number, reason in MISSED.items()
    ]
    write_lines("history.jsonl", b"".join(map(line, [make(1), *missed])))
    table = shown().splitlines()
    assert table[5].split()[:3] == ["total", "50.0", ">=2.50"]
    assert table[-1] == "not metered, and in no sum: 1 io, 2 no_rmids"
    assert json.loads(shown("--json"))["total"]["unmonitored"] == {"io": 1, "no_rmids": 2}
    assert [job["reason"] for job in json.loads(shown("--json"))["jobs"]] == [
        None,
        *MISSED.values(),
    ]
    assert [row["reason"] for row in csv.DictReader(io.StringIO(shown("--csv")))] == [
        "",
        *MISSED.values(),
    ]
    (day,) = csv.DictReader(io.StringIO(shown("--csv", "--by=day")))
    assert (day["jobs"], day["unmonitored"]) == ("4", "1 io 2 no_rmids")


@pytest.mark.parametrize("form", ["", "--json", "--csv", "--by=day --json"])
def test_a_name_that_no_job_has_is_said_beside_the_others_jobs_with_status_2(
    shown: Print, complaints: list[str], form: str
) -> None:
    write_lines("history.jsonl", b"".join(map(line, SOME)))
    expected = shown("job-17", *form.split())
    assert shown("job-17", "nosuch", *form.split(), status=2) == expected
    assert complaints == [f"no job in {FILE} matches 'nosuch'"]


@pytest.mark.parametrize("form", ["--json", "--csv"])
def test_rows_wait_for_those_that_ended_before_them(shown: Print, form: str) -> None:
    """Ends are not in the order of the lines: of keys that lingered, or of lines that waited."""
    ends = [f"2026-11-17T01:{minute:02}:00Z" for minute in (3, 1, 4, 1, 5, 9, 2, 6)]
    write_lines(
        "history.jsonl", b"".join(line(make(number, end=end)) for number, end in enumerate(ends))
    )
    shown_ends = re.findall(r"2026-11-17T01:0\d:00Z(?=,|\", \"seconds)", shown(form))
    assert [end for end in shown_ends if end in ends] == sorted(ends)


ODD = [
    None,
    0,
    1,
    -1,
    1.5,
    -0.5,
    True,
    "",
    "x",
    "a b",
    2**70,
    float("nan"),
    float("inf"),
    [],
    {},
    ["x"],
    [None],
    {"x": "y"},
    {"x": 1},
    {"x": 1.0},
    {"x": -1.0},
    {"x": float("nan")},
    [{"id": "x", "name": None}],
    [{"id": "x"}],
    [{"id": "x", "name": 1}],
    [{"name": "x", "id": "x"}],
]


def test_a_job_is_taken_as_it_is_only_if_the_model_leaves_it_so() -> None:
    written = make(1, use={"core_energy": 2.5})
    assert lines.is_usual(written)
    for name, value in product([*written, "more"], ODD):
        fields = {**written, name: value}
        if lines.is_usual(fields):
            assert Job.model_validate(fields).model_dump() == fields
        assert (
            not lines.is_usual({other: written[other] for other in written if other != name})
            or name == "more"
        )
