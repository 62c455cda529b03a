# SPDX-License-Identifier: Apache-2.0
"""The sums of the history: no line twice, and none left out, whatever rotation, kills,
torn tails and losses do.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from hook import ending, rare, system, unmonitored
from hook.context import new_context
from hook.line import name_run
from hook.models import Failure, KeyState, Options, Owed
from hook.node import sums
from hook.node.models import Sums
from hook.reconcile.sums import keep_sums
from hook.resctrl import Resctrl
from hook.store import RunDir
from hook.validation import replace
from tests.unit.files import examples
from tests.unit.lines import line, make, make_pod


class Kept:
    """A history in a directory, and what reconcile makes of it."""

    def __init__(self, top: Path) -> None:
        self.file = top / "log/history.jsonl"
        self.file.parent.mkdir()
        (top / "run").mkdir(0o755)
        options = Options(
            run_dir=str(top / "run"), resctrl_root=str(top / "none"), history=str(self.file)
        )
        self.context = new_context(Resctrl(options.resctrl_root), RunDir(options.run_dir), options)
        rare.make_parts(self.context.run.descriptor)

    def append(self, *jobs: dict[str, Any]) -> None:
        ending.append_lines(str(self.file), [json.dumps(job) for job in jobs])

    def keep(self, *labels: str) -> list[str]:
        return keep_sums(self.context, [], labels)

    def read(self) -> Sums:
        read = sums.read(str(self.file))
        assert read is not None
        return read

    def sum_up(self, namespace: str = "shop", event: str = "core_energy") -> str | None:
        total = self.read().namespaces.get(namespace)
        return total.use.get(event) if total is not None else None

    def rotate(self, *, packs: bool = True) -> None:
        """Begin a new file, and compress the former ones."""
        directory, name = self.file.parent, self.file.name
        for number in range(12, 1, -1):
            packed = directory / f"{name}.{number}.gz"
            if packed.exists():
                packed.rename(directory / f"{name}.{number + 1}.gz")
        former = directory / f"{name}.1"
        if former.exists():
            if packs:
                (directory / f"{name}.2.gz").write_bytes(gzip.compress(former.read_bytes()))
            former.unlink()
        if self.file.exists():
            self.file.rename(former)


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(system, "unix_time", lambda: 1_795_000_000.0)
        yield Kept(tmp_path)


def use(energy: float, **more: float) -> dict[str, float]:
    return {"core_energy": energy, **more}


def test_lines_add_up_by_namespace_and_label_and_each_counts_once(kept: Kept) -> None:
    kept.append(
        make_pod(1, "shop", "a", use=use(2.5, c1_res=3)),
        make_pod(2, "shop", "b", use=use(0.000001)),
    )
    kept.append(make_pod(3, "lab", "c", use=use(7), unknown=["core_energy"]))
    kept.append(make(4, "job", kind="job", labels={"user": "ann", "task": "t"}, use=use(1)))
    assert kept.keep("user") == ["made from 1 file of the history"]
    kept.append(make(5, "job", kind="job", labels={"user": "ann"}, use=use(2)))
    assert kept.keep() == []
    assert kept.keep() == []
    read = kept.read()
    assert {name: total.use["core_energy"] for name, total in read.namespaces.items()} == {
        "shop": "2.500001",
        "lab": "7",
        "": "3",
    }
    assert [kept.sum_up(event="c1_res"), read.namespaces["lab"].unknown_runs] == ["3", 1]
    assert {name: total.use for name, total in read.labels["user"].items()} == {
        "ann": {"core_energy": "3"}
    }
    assert [*read.labels] == ["user"]


def test_values_of_a_label_beyond_the_most_are_one(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sums, "MOST_VALUES", 2)
    kept.append(
        *(
            make(number, kind="job", labels={"user": f"u{number}"}, use=use(1))
            for number in range(1, 6)
        )
    )
    kept.keep("user")
    kept.append(make(5, kind="job", labels={"user": "u5"}, use=use(4)))
    kept.keep()
    read = kept.read().labels["user"]
    assert {name: total.use["core_energy"] for name, total in read.items()} == {
        "u1": "1",
        "u2": "1",
        "other": "6",
    }


def test_files_that_begin_with_blank_lines_are_not_taken_for_each_other(kept: Kept) -> None:
    kept.file.write_bytes(b"\n \n" + line(make_pod(1, "shop", "a", use=use(3))) + b"\n")
    kept.keep()
    kept.rotate()
    kept.file.write_bytes(b"\n \n" + line(make_pod(2, "shop", "b", use=use(4))) + b"\n")
    kept.keep()
    assert kept.sum_up() == "7"


BEFORE_AND_AFTER = pytest.mark.parametrize(
    "sums_between", [False, True], ids=["before a sum", "before and after one"]
)


@BEFORE_AND_AFTER
@pytest.mark.parametrize(
    ("stamps", "counts"),
    [
        ((None, None), 5),
        ((None, "2026-11-18T11:00:00.000002Z"), 5),
        (("2026-11-18T11:00:00.000003Z", None), 5),
    ],
)
def test_of_two_lines_of_an_id_the_later_one_counts(
    kept: Kept, stamps: tuple[str | None, str | None], counts: int, *, sums_between: bool
) -> None:
    first, second = (
        make_pod(1, "shop", "a", use=use(energy), written=stamp or "")
        for energy, stamp in zip((3, 5), stamps)
    )
    kept.keep()
    kept.append(first)
    if sums_between:
        kept.keep()
    kept.append(make_pod(2, "lab", "b"), second)
    kept.keep()
    assert kept.sum_up() == str(counts)


@pytest.mark.parametrize("has_sums", [True, False])
def test_lines_of_an_id_in_a_history_that_was_never_added_up_count_once(
    kept: Kept, *, has_sums: bool
) -> None:
    """The record is long gone: what is repeated is found by the IDs of all lines."""
    if has_sums:
        kept.keep()
    kept.append(make_pod(1, "shop", "a", use=use(3)), make_pod(2, "shop", "a", use=use(10)))
    kept.rotate()
    kept.append(make_pod(1, "shop", "a", use=use(5)))
    kept.keep()
    assert [kept.sum_up(), kept.read().repeated] == ["15", []]


def test_torn_tail_is_left_until_its_line_is_whole(kept: Kept) -> None:
    whole = line(make_pod(1, "shop", "a", use=use(1)))
    kept.file.write_bytes(whole + line(make_pod(2, "shop", "b", use=use(2)))[:40])
    kept.keep()
    assert kept.sum_up() == "1"
    kept.append(make_pod(2, "shop", "b", use=use(2)))
    kept.keep()
    assert kept.sum_up() == "3"


@pytest.mark.parametrize("sums_between", [False, True])
def test_line_that_a_hook_writes_to_the_file_that_was_renamed_meanwhile_counts(
    kept: Kept, *, sums_between: bool
) -> None:
    kept.append(make_pod(1, "shop", "a", use=use(1)))
    with kept.file.open("ab", buffering=0) as opened:
        kept.keep()
        kept.rotate()
        kept.append(make_pod(2, "shop", "b", use=use(2)))
        if sums_between:
            kept.keep()
        opened.write(line(make_pod(3, "shop", "c", use=use(4))))
    kept.keep()
    assert kept.sum_up() == "7"
    kept.rotate()
    kept.keep()
    assert kept.sum_up() == "7"


def test_compressed_file_that_is_half_read_is_read_on(kept: Kept) -> None:
    kept.append(make_pod(1, "shop", "a", use=use(1)))
    kept.keep()
    kept.append(make_pod(2, "shop", "b", use=use(2)))
    kept.rotate()
    kept.append(make_pod(3, "shop", "c", use=use(4)))
    kept.rotate()
    kept.keep()
    assert kept.sum_up() == "7"


def test_file_that_is_plain_and_compressed_counts_once(kept: Kept) -> None:
    """Rotation was killed before it removed the plain one."""
    kept.append(make_pod(1, "shop", "a", use=use(1)))
    kept.rotate()
    former = kept.file.with_name("history.jsonl.1").read_bytes()
    kept.file.with_name("history.jsonl.2.gz").write_bytes(gzip.compress(former))
    kept.keep()
    kept.keep()
    assert kept.sum_up() == "1"


@pytest.mark.parametrize("damage", ["", "{", '{"version": 2}', "\x00\x00", "[]", "9" * 100])
def test_lost_or_damaged_sums_are_made_again_and_that_is_said(kept: Kept, damage: str) -> None:
    kept.append(make_pod(1, "shop", "a", use=use(1)))
    kept.keep()
    path = Path(sums.locate(str(kept.file)))
    if damage:
        path.write_text(damage)
    else:
        path.unlink()
    kept.append(make_pod(2, "shop", "b", use=use(2)))
    said = kept.keep()
    assert said[-1] == "made from 1 file of the history"
    assert [kept.sum_up(), path.with_name("sums.json.damaged").exists()] == ["3", bool(damage)]


def test_file_that_was_cut_is_added_up_again_and_that_is_said(kept: Kept) -> None:
    kept.append(make_pod(1, "shop", "a", use=use(1)), make_pod(2, "shop", "b", use=use(2)))
    kept.keep()
    os.truncate(kept.file, len(line(make_pod(1, "shop", "a", use=use(1)))))
    assert kept.keep() == [
        "history.jsonl is shorter than what was added up of it",
        "made from 1 file of the history",
    ]
    assert kept.sum_up() == "1"


def test_damaged_compressed_file_is_said_once_and_what_is_before_the_damage_counts(
    kept: Kept,
) -> None:
    packed = gzip.compress(
        b"".join(
            line(make_pod(n, "shop", str(random.random()), use=use(1))) for n in range(1, 2000)
        )
    )
    kept.file.with_name("history.jsonl.2.gz").write_bytes(packed[: len(packed) // 2])
    kept.append(make_pod(5000, "lab", "b", use=use(1)))
    said = kept.keep()
    assert "history.jsonl.2.gz: not read to its end" in said[-1]
    assert [kept.keep(), kept.sum_up("lab")] == [[], "1"]
    assert float(kept.sum_up() or 0) > 100


def test_long_history_is_added_up_in_several_runs(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its repeated lines count once also if one is read in each run,
    and nothing shows a part of the sums.
    """
    jobs = [make_pod(number, "shop", "a", use=use(1)) for number in range(1, 1800)]
    kept.append(*jobs, make_pod(1, "shop", "a", use=use(3)))
    monkeypatch.setattr("hook.reconcile.sums._SECONDS", -1.0)
    wholes = []
    for _ in range(5):
        kept.keep()
        wholes.append(kept.read().is_whole)
    assert wholes == [False, False, False, True, True]
    assert [kept.sum_up(), len(kept.read().recent)] == [str(1799 + 2), sums.MOST_RECENT]


def test_sums_are_not_written_again_if_nothing_was(kept: Kept) -> None:
    kept.append(make_pod(1, "shop", "a"))
    kept.keep()
    before = os.stat(sums.locate(str(kept.file))).st_ino
    kept.keep()
    assert os.stat(sums.locate(str(kept.file))).st_ino == before


def test_without_a_directory_of_a_history_nothing_is_done(kept: Kept) -> None:
    kept.file.parent.rmdir()
    assert kept.keep() == []


# --- What a later line may replace


@pytest.mark.parametrize(
    "kind", ["live", "completed", "owed", "unreadable", "failed", "none", "later run"]
)
def test_line_whose_run_is_on_record_is_replaced_however_late(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A hook was killed between the line and the record,
    or the kernel refused to remove the group: it ends again.
    """
    monkeypatch.setattr(sums, "MOST_RECENT", 1)
    run, at = kept.context.run, "2026-11-18T10:00:00Z"
    state = KeyState(key="web", kind="job", created_at=at, created_boottime=5.0)
    job = make_pod(1, "shop", "web", key="web", id=name_run(state), use=use(3))
    if kind == "failed":
        failure = Failure(
            container="web",
            stage="createRuntime",
            reason="no_rmids",
            problem="p",
            pid=7,
            starttime=9,
        )
        run.write(Failure, "web", failure)
        job.update(
            id=unmonitored.name_run(failure),
            containers=[{"id": "web", "name": None}],
            reason="no_rmids",
        )
    elif kind != "none":
        after: dict[str, dict[str, Any]] = {
            "completed": {"completed_at": at},
            "owed": {
                "created_at": "2026-11-18T11:00:00Z",
                "owed": Owed(lines=[json.dumps(job)], why="?: ENOSPC"),
            },
            "later run": {"created_at": "2026-11-18T11:00:00Z"},
        }
        with run.lock("web", system.monotonic()) as locked:
            locked.commit(replace(state, **after.get(kind, {})))
        if kind == "unreadable":
            (Path(run.path) / "groups/web.json").write_text("{")
    for hour in range(3):
        monkeypatch.setattr(system, "unix_time", lambda now=1_795_000_000.0 + 3600 * hour: now)
        kept.append(job if hour == 0 else make_pod(hour + 1, "lab", "other"))
        kept.keep()
    is_kept = kind not in ("none", "later run")
    assert (job["id"] in kept.read().recent) == is_kept
    kept.append({**job, "use": use(5)})
    kept.keep()
    assert kept.sum_up() == ("5" if is_kept else "8")


# --- Any order of all that can happen


class Oracle:
    """What the lines add up to that are in the files, each with its ID once;
    what was compressed away stays in it.
    """

    def __init__(self, kept: Kept) -> None:
        self.kept = kept
        self.lines: dict[str, float] = {}

    def check(self) -> None:
        total = sum(self.lines.values())
        shown = self.kept.read().namespaces.get("shop")
        assert float(shown.use["core_energy"] if shown is not None and shown.use else 0) == total


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 6)),
        st.tuples(st.just("late"), st.integers(1, 6)),
        st.tuples(st.just("torn"), st.integers(1, 40)),
        st.tuples(st.just("kill"), st.integers(1, 30)),
        st.tuples(st.sampled_from(["sum", "rotate", "lose", "damage", "duplicate"]), st.just(0)),
    ),
    max_size=25,
)


def keep_and_die(kept: Kept, calls: int) -> None:
    """Start to add up in a process that is killed at so many calls of what it does with files."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        left = [calls]

        def watch(event: str, _arguments: object) -> None:
            if event in ("open", "os.rename", "os.remove", "os.scandir"):
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        def sync(descriptor: Any) -> None:  # noqa: ANN401
            left[0] = 1
            watch("open", descriptor)

        if calls % 5 == 0:
            os.fsync = sync  # type: ignore[assignment]
        sys.addaudithook(watch)
        kept.keep()
    finally:
        os._exit(0)


@given(steps=STEPS)
@examples(40, HealthCheck.function_scoped_fixture)
def test_sums_are_those_of_the_lines_after_any_order_of_steps(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    kept = Kept(tmp_path_factory.mktemp("any"))
    oracle, old = Oracle(kept), None
    kept.keep()
    for number, (step, value) in enumerate(steps, 1):
        if step in ("append", "duplicate"):
            # A run that is written again, as after a kill, has a later line of its ID.
            run = [*oracle.lines][-1] if step == "duplicate" and oracle.lines else f"{number:016x}"
            energy = oracle.lines.get(run, 0) + max(value, 1)
            oracle.lines[run] = energy
            kept.append(make_pod(number, "shop", "web", id=run, use=use(energy)))
        elif step == "late" and old is not None:
            oracle.lines[f"{number:016x}"] = value
            os.write(old, line(make_pod(number, "shop", "late", use=use(value))))
        elif step == "torn":
            with kept.file.open("ab") as file:
                file.write(line(make_pod(number, "shop", "torn"))[:value])
        elif step == "rotate":
            if old is not None:
                os.close(old)
            old = os.open(kept.file, os.O_WRONLY | os.O_APPEND) if kept.file.exists() else None
            kept.rotate()
        elif step == "kill":
            keep_and_die(kept, value)
        elif step in ("lose", "damage"):
            path = Path(sums.locate(str(kept.file)))
            path.unlink(missing_ok=True) if step == "lose" else path.write_text("{")
        else:
            kept.keep()
            oracle.check()
    kept.keep()
    oracle.check()
    if old is not None:
        os.close(old)
