# SPDX-License-Identifier: Apache-2.0
"""The counters that bill: no use twice, none left out, and no sample that falls, whatever ends,
rotates or restarts.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from hook import ending, life_end, system
from hook.errors import HookError
from hook.line import make_line, name_run
from hook.models import KeyState, Member, MonGroup, Owed
from hook.node import sums
from hook.reconcile.sums import keep_sums
from hook.show.bill import Bill, read_bill
from hook.show.prometheus import SHOWN, Former, Shown, keep_former, make_bill
from hook.show.snapshot import Group, SeenKey
from hook.validation import replace
from tests.unit.files import examples
from tests.unit.lines import make, make_pod
from tests.unit.simulated import fails
from tests.unit.test_sums import Kept, keep_and_die, use

ENERGY = "mon_PERF_PKG_00/core_energy"
METRIC = "resctrl_mon_namespace_core_energy_joules_total"
LATER = 61.0


class Billed(Kept):
    """A node whose history reconcile adds up, and what its keys show."""

    def __init__(self, top: Path) -> None:
        super().__init__(top)
        self.now = 1_795_000_000.0
        self.keys: list[SeenKey] = []
        self.boot, self.counter = "1", "1"

    def run(
        self,
        key: str = "web",
        namespace: str | None = "shop",
        used: str = "2.5",
        **more: Any,  # noqa: ANN401
    ) -> KeyState:
        """A run of a key is on record, and its group shows this."""
        group = MonGroup(path="/r/mon_groups/x", ctrl_group="/", begin={ENERGY: "1"}, inode=1)
        fields: dict[str, Any] = {
            "created_at": "2026-11-18T11:00:00Z",
            "created_boottime": 5.0,
            "history_file": str(self.file),
        }
        state = KeyState(
            key=key, kind="pod", pod_namespace=namespace, groups=[group], **{**fields, **more}
        )
        if not state.members:
            state = replace(state, members={"c1": Member(pid=7, starttime=9, group=group.path)})
        now = {ENERGY: str(float(used) + 1)}
        self.keys = [SeenKey(state, [Group(group, exists=True, now=now)], {})]
        with self.context.run.lock(key, system.monotonic()) as locked:
            locked.commit(state)
        return state

    def end(self, state: KeyState, used: str = "2.5") -> str:
        """Return the line of its end."""
        left = life_end.leave(state, state.members, stops=True)
        ended = life_end.finish(left.groups[0], {ENERGY: str(float(used) + 1)})
        (text,) = make_line(left, [ended], (9.0, self.now), "n1")
        return text

    def forget(self) -> None:
        self.keys = []
        with self.context.run.lock("web", system.monotonic()) as locked:
            locked.clear()

    def keep_all(self) -> list[str]:
        """What reconcile does."""
        return keep_sums(self.context, [key.state for key in self.keys], ())

    def bill(self) -> Bill:
        shown = read_bill(self.context.options, self.keys)
        assert shown is not None
        return shown

    def shown(self, namespace: str = "shop") -> float | None:
        return self.bill().namespaces.get(namespace, {}).get("core_energy")


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Billed:
    node = Billed(tmp_path)
    monkeypatch.setattr(system, "unix_time", lambda: node.now)
    node.keep_all()
    return node


STEPS = ["line", "sum", "forget", "sum", "rotate", "later", "sum"]


@pytest.mark.parametrize("sums_also", [False, True], ids=["", "reconcile after each step"])
def test_a_run_counts_by_its_record_then_by_its_line_and_never_by_both(
    node: Billed, *, sums_also: bool
) -> None:
    node.append(make_pod(1, "shop", "before", use=use(10)))
    state = node.run()
    node.keep_all()
    node.now += LATER
    assert node.shown() == 12.5
    for step in STEPS:
        if step == "line":
            ending.append_lines(str(node.file), [node.end(state)])
        elif step == "forget":
            node.forget()
        elif step == "rotate":
            node.rotate()
        elif step == "later":
            node.now += 3600
        if step == "sum" or sums_also:
            node.keep_all()
        assert node.shown() == 12.5, step


def test_a_record_that_was_read_before_the_run_was_added_up_and_forgotten_counts_once(
    node: Billed,
) -> None:
    """A scrape reads the records, then waits; a hook ends the key,
    and reconcile adds its line up.
    """
    state = node.run()
    node.keep_all()
    node.now += LATER
    keys = node.keys
    ending.append_lines(str(node.file), [node.end(state)])
    node.forget()
    node.keep_all()
    node.keys = keys
    assert node.shown() == 2.5


@pytest.mark.parametrize("is_written", [False, True])
def test_a_line_that_waits_counts_once(node: Billed, *, is_written: bool) -> None:
    state = node.run()
    node.keep_all()
    node.now += LATER
    text = node.end(state)
    owed = replace(
        state,
        members={},
        completed_at="2026-11-18T11:10:00Z",
        owed=Owed(lines=[text], why="?: EROFS"),
    )
    node.keys = [SeenKey(owed, [], {})]
    if is_written:
        ending.append_lines(str(node.file), [text])
    assert node.shown() == 2.5


@pytest.mark.parametrize(
    "more",
    [
        {"history_file": ""},
        {"history_file": "/elsewhere/h.jsonl"},
        {"completed_at": "2026-11-18T11:10:00Z"},
    ],
    ids=["without a history", "of another history", "completed"],
)
def test_a_run_that_has_no_line_to_come_in_this_history_is_not_counted(
    node: Billed, more: dict[str, str]
) -> None:
    node.append(make_pod(1, "shop", "before", use=use(10)))
    node.keep_all()
    node.now += LATER
    node.run(**more)
    assert node.shown() == 10


def test_labels_are_those_that_reconcile_adds_up(node: Billed) -> None:
    node.keep("user")
    node.run(namespace=None, job_labels={"user": "ann", "task": "t"})
    node.append(make(9, kind="job", labels={"user": "bob"}, use=use(4)))
    node.keep_all()
    node.now += LATER
    shown = node.bill()
    assert {label: samples["core_energy"] for label, samples in shown.labels.items()} == {
        ("user", "ann"): 2.5,
        ("user", "bob"): 4,
    }
    assert shown.namespaces[""]["core_energy"] == 6.5


def test_a_new_series_is_0_for_a_minute_and_at_least_until_reconcile_has_seen_it(
    node: Billed,
) -> None:
    """increase() does not see the first value of a series."""
    node.run()
    assert node.shown() == 0
    node.now += 3600
    assert node.shown() == 0
    node.keep_all()
    for seconds, value in ((0.0, 0), (59.0, 0), (2.0, 2.5)):
        node.now += seconds
        assert node.shown() == value
    # A pod that lived for an instant between two runs of reconcile;
    # and runs of which a part is unknown.
    node.append(make_pod(2, "lab", "short", use=use(7), unknown=["core_energy"]))
    assert [node.shown("lab"), node.bill().namespaces["lab"][sums.RUNS]] == [0, 0]
    node.keep_all()
    node.now += LATER
    assert [node.shown("lab"), node.bill().namespaces["lab"][sums.RUNS]] == [7, 1]


def test_what_had_ended_long_before_there_were_sums_is_the_first_value(node: Billed) -> None:
    """From 0 it would be growth, and a month's use would be billed in the minute of an upgrade."""
    Path(sums.locate(str(node.file))).unlink()
    node.append(make_pod(1, "shop", "old", use=use(10)))
    node.keep_all()
    assert node.shown() == 10


@pytest.mark.parametrize("how", ["none", "damaged", "half made"])
def test_without_whole_sums_there_is_no_bill(node: Billed, how: str) -> None:
    path = Path(sums.locate(str(node.file)))
    if how == "none":
        path.unlink()
    else:
        path.write_text(
            "{"
            if how == "damaged"
            else json.dumps({**json.loads(path.read_text()), "is_whole": False})
        )
    assert read_bill(node.context.options, node.keys) is None


def test_no_sample_falls_while_the_endpoint_runs_or_after_its_restart(node: Billed) -> None:
    """A power cut took what had been shown:
    from a lower value Prometheus would count the whole bill once more.
    """
    node.run(used="9")
    node.keep_all()
    node.now += LATER
    for used, value in (("9", 9), ("4", 9), ("9.5", 9.5), ("5", 9.5)):
        node.run(used=used)
        shown = Shown(str(node.file))  # it has started again
        families = make_bill(node.bill(), shown.add(Former()))
        shown.keep(families)
        assert keep_former(families, 0.0).samples[METRIC, (("namespace", "shop"),)] == value
    text = (node.file.parent / SHOWN).read_text()
    assert f'{METRIC}{{namespace="shop"}} 9.5' in text


def test_what_cannot_be_kept_is_said_once(node: Billed, complaints: list[str]) -> None:
    node.run()
    shown = Shown(str(node.file))
    (node.file.parent / SHOWN).mkdir()
    for used in ("1", "2"):
        node.run(used=used)
        node.keep_all()
        node.now += LATER
        shown.keep(make_bill(node.bill(), Former()))
    assert [text.partition(":")[0] for text in complaints] == [
        "the counters that bill may fall after a restart"
    ]


# --- A power cut, and a mere loss of the records


@pytest.fixture
def saved(node: Billed, monkeypatch: pytest.MonkeyPatch) -> Billed:
    """A run of this process, which has used 2.5, was saved a checkpoint ago;
    it has used 4 since.
    """
    node.boot = "1"
    monkeypatch.setattr("hook.reconcile.sums.read_boot", lambda: node.boot)
    monkeypatch.setattr(
        "hook.reconcile.sums.read_finals", lambda *_: {"/r/mon_groups/x": {ENERGY: node.counter}}
    )
    node.counter = "3.5"
    node.run()
    node.now += 600
    node.keep_all()
    node.counter = "5.0"
    node.now += LATER
    node.keep_all()
    return node


def lines_of(node: Billed) -> list[tuple[float, list[str]]]:
    jobs = (
        [json.loads(text) for text in node.file.read_text().splitlines()]
        if node.file.exists()
        else []
    )
    return [(job["use"]["core_energy"], job["unknown"]) for job in jobs]


MARKED = (2.5, ["core_energy"])


@pytest.mark.parametrize(
    "killed", [False, True], ids=["", "reconcile is killed before the sums are written"]
)
def test_after_a_power_cut_each_run_has_one_line_of_the_last_checkpoint(
    saved: Billed, monkeypatch: pytest.MonkeyPatch, *, killed: bool
) -> None:
    saved.boot = "2"
    saved.forget()
    assert saved.shown() == 2.5
    if killed:
        with monkeypatch.context() as patch:
            patch.setattr(sums, "write", fails(KeyboardInterrupt()))
            with pytest.raises(KeyboardInterrupt):
                saved.keep_all()
    else:
        assert saved.keep_all() == [
            "wrote the lines of 1 run whose records were lost, as of the last checkpoint"
        ]
    for _ in range(2):
        assert saved.shown() == 2.5
        saved.keep_all()
        saved.now += 600
    assert lines_of(saved) == [MARKED]


def test_a_run_whose_processes_live_has_no_line_yet_and_its_use_counts_once(saved: Billed) -> None:
    """The records are lost, and the machine runs on: reconcile rebuilds them from here on."""
    process = subprocess.Popen(["sleep", "infinity"])
    try:
        starttime = system.starttime(process.pid)
        assert starttime is not None
        saved.run(
            members={"c1": Member(pid=process.pid, starttime=starttime, group="/r/mon_groups/x")}
        )
        saved.now += 600
        saved.keep_all()
        saved.forget()
        saved.run(used="1", created_boottime=77.0)
        for _ in range(2):
            saved.keep_all()
            assert (saved.shown(), lines_of(saved)) == (5.0, [])
            saved.now += 600
    finally:
        process.kill()
        process.wait()
    saved.keep_all()
    assert (saved.shown(), lines_of(saved)) == (5.0, [(4.0, ["core_energy"])])


def test_a_run_that_a_hook_ended_has_the_hooks_line(saved: Billed) -> None:
    (key,) = saved.keys
    ending.append_lines(str(saved.file), [saved.end(key.state, "4")])
    saved.forget()
    saved.boot = "2"
    saved.keep_all()
    assert (saved.shown(), lines_of(saved)) == (4.0, [(4.0, [])])


def test_a_run_that_a_hook_ends_while_reconcile_looks_has_the_hooks_line(
    saved: Billed, monkeypatch: pytest.MonkeyPatch
) -> None:
    (key,) = saved.keys

    def end(*_: object) -> str:
        ending.append_lines(str(saved.file), [saved.end(key.state, "4")])
        saved.forget()
        monkeypatch.setattr("hook.reconcile.sums.read_boot", lambda: "2")
        return "2"

    monkeypatch.setattr("hook.reconcile.sums.read_boot", end)
    saved.keep_all()
    assert lines_of(saved) == [(4.0, [])]


@pytest.mark.parametrize("how", ["on record", "owed", "unreadable"])
def test_a_run_on_record_has_no_line_of_a_checkpoint(saved: Billed, how: str) -> None:
    (key,) = saved.keys
    saved.boot = "2"
    if how == "owed":
        owed = Owed(lines=[saved.end(key.state)], why="?: EROFS")
        with saved.context.run.lock("web", system.monotonic()) as locked:
            locked.commit(
                replace(key.state, members={}, completed_at="2026-11-18T11:10:00Z", owed=owed)
            )
    elif how == "unreadable":
        (Path(saved.context.run.path) / "groups/web.json").write_text("{")
    for _ in range(2):
        saved.keep_all()
        saved.now += 600
    assert lines_of(saved) == []
    assert [*saved.read().saved] == [name_run(key.state)]


def test_a_line_of_a_checkpoint_that_cannot_be_written_waits(
    saved: Billed, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved.boot = "2"
    saved.forget()
    with monkeypatch.context() as patch:
        patch.setattr(ending, "append_lines", fails(OSError(28, "No space left on device")))
        with pytest.raises(HookError):
            saved.keep_all()
    saved.keep_all()
    assert lines_of(saved) == [MARKED]


@pytest.mark.parametrize(
    ("seconds", "uses"), [(300.0, ["4", "4"]), (0.0, []), (1.0, ["2.5", "4", "4"])]
)
def test_what_runs_is_saved_at_each_checkpoint(
    node: Billed, monkeypatch: pytest.MonkeyPatch, seconds: float, uses: list[str]
) -> None:
    monkeypatch.setattr(
        "hook.reconcile.sums.read_finals", lambda *_: {"/r/mon_groups/x": {ENERGY: node.counter}}
    )
    node.counter = "3.5"
    node.run()
    found = []
    for _ in range(3):
        node.now += 200
        keep_sums(node.context, [], (), seconds)
        found += [json.loads(run.line)["use"]["core_energy"] for run in node.read().saved.values()]
        node.counter = "5.0"
    assert found == [*map(float, uses)]


# --- Any order of all that can happen to runs


class Machine(Billed):
    """Runs of keys that use energy, end, and are lost;
    `used` and `saved` are what each has used, now and at least.
    """

    def __init__(self, top: Path) -> None:
        super().__init__(top)
        self.used: dict[str, int] = {}
        self.least: dict[str, int] = {}
        self.live: dict[str, KeyState] = {}
        self.ended: set[str] = set()
        self.last = 0.0

    def look(self, state: KeyState) -> dict[str, dict[str, str]]:
        return {"/r/mon_groups/x": {ENERGY: str(self.used[name_run(state)] + 1)}}

    def start(self) -> None:
        state = self.run(f"key-{len(self.used)}", created_boottime=float(len(self.used)))
        self.live[name_run(state)] = state
        self.used[name_run(state)] = 0

    def use(self, amount: int) -> None:
        for run in self.live:
            self.used[run] += amount

    def clear(self, state: KeyState) -> None:
        with self.context.run.lock(state.key, system.monotonic()) as locked:
            locked.clear()

    def end_first(self, *, is_killed: bool) -> None:
        """The hook of an end, which may be killed between the line and the record:
        then the key ends again later.
        """
        for run, state in [*self.live.items()][:1]:
            ending.append_lines(str(self.file), [self.end(state, str(self.used[run]))])
            self.least[run] = self.used[run]
            if not is_killed:
                self.ended.add(run)
                self.clear(self.live.pop(run))

    def cut_power(self) -> None:
        self.boot += "1"
        for state in self.live.values():
            self.clear(state)
        self.live.clear()

    def keep_at_checkpoint(self) -> None:
        self.now += 600
        keep_sums(self.context, [*self.live.values()])
        self.least.update(
            {run: self.used[run] for run in self.live if run not in self.read().recent}
        )

    def list_keys(self) -> list[SeenKey]:
        group = {
            run: Group(state.groups[0], exists=True, now=self.look(state)["/r/mon_groups/x"])
            for run, state in self.live.items()
        }
        return [SeenKey(state, [group[run]], {}) for run, state in self.live.items()]

    def check(self) -> None:
        """Each use is billed once at most, and what was saved or has a line
        at least; no sample falls.
        """
        self.keys = self.list_keys()
        bill = read_bill(self.context.options, self.keys)
        assert bill is not None
        shown = Shown(str(self.file))
        families = make_bill(bill, shown.add(Former()))
        shown.keep(families)
        value = keep_former(families, 0.0).samples.get((METRIC, (("namespace", "shop"),)), 0.0)
        assert self.last <= value <= sum(self.used.values())
        self.last = value

    def check_lines(self) -> None:
        """All is over: each run that was saved, or ended, has a line,
        and one that a hook has ended has the hook's.
        """
        jobs = {}
        for job in map(
            json.loads, self.file.read_text().splitlines() if self.file.exists() else ()
        ):
            jobs[job["id"]] = job
        assert {run for run in self.used if self.least.get(run)} <= jobs.keys() <= self.used.keys()
        for run, job in jobs.items():
            energy = job["use"]["core_energy"]
            assert self.least.get(run, 0) <= energy <= self.used[run]
            assert run not in self.ended or (energy == self.used[run] and not job["unknown"])
        total = self.read().namespaces.get("shop")
        known = float(total.use.get("core_energy", 0)) if total is not None else 0
        assert known == sum(job["use"]["core_energy"] for job in jobs.values())


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("use"), st.integers(1, 50)),
        st.tuples(st.just("kill"), st.integers(1, 30)),
        st.tuples(st.sampled_from(["start", "end", "end killed", "keep", "power cut"]), st.just(0)),
    ),
    max_size=20,
)


@given(events=EVENTS)
@examples(40, HealthCheck.function_scoped_fixture)
def test_each_run_has_one_line_and_counts_once_whenever_the_machine_dies(
    tmp_path_factory: pytest.TempPathFactory, events: list[tuple[str, int]]
) -> None:
    machine = Machine(tmp_path_factory.mktemp("any"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(system, "unix_time", lambda: machine.now)
        patch.setattr("hook.reconcile.sums.read_boot", lambda: machine.boot)
        patch.setattr("hook.reconcile.sums.read_finals", lambda _, state: machine.look(state))
        machine.keep_at_checkpoint()
        machine.start()
        for event, value in events:
            if event == "use":
                machine.use(value)
            elif event == "start":
                machine.start()
            elif event.startswith("end"):
                machine.end_first(is_killed=event != "end")
            elif event == "kill":
                machine.now += 600
                keep_and_die(machine, value)
            elif event == "power cut":
                machine.cut_power()
            else:
                machine.keep_at_checkpoint()
            machine.check()
        machine.cut_power()
        machine.keep_at_checkpoint()
        machine.keep_at_checkpoint()
        machine.check_lines()
