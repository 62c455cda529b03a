# SPDX-License-Identifier: Apache-2.0
"""What only the model of resctrl can show: its knobs, its time, and machines that the documentation alone describes.

All else `kernel/test_model_is_kernel.py` compares with the kernel. Here are no mount, no processes, no time.
"""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass, field

import pytest

from tests.resctrlfs import assigned, shapes
from tests.resctrlfs.model import Injection, Knobs, ResctrlModel, kernel_int
from tests.resctrlfs.tasks import Task, parse_stat

WRITER = 7


@dataclass
class FakeTasks:
    """Tasks as a test makes them, in one pid namespace."""

    tasks: dict[int, Task] = field(default_factory=dict)
    now: int = 0

    def start(self, tid: int, parent: int = 1, pid: int = 0) -> int:
        self.now += 1
        self.tasks[tid] = Task(tid, pid or tid, parent, self.now)
        return tid

    def snapshot(self) -> dict[int, Task]:
        return dict(self.tasks)

    def resolve(self, _observer: int, number: int) -> int | None:
        return number if number in self.tasks else None

    def number(self, _observer: int, tid: int) -> int:
        return tid


class ModelOfFakeTasks(ResctrlModel):
    def __init__(self, **knobs: object) -> None:
        self.fake = FakeTasks()
        self.now = 0
        for tid in (1, WRITER):
            self.fake.start(tid, parent=0 if tid == 1 else 1)
        settings = Knobs()
        for name, value in knobs.items():
            assert hasattr(settings, name)
            setattr(settings, name, value)
        super().__init__(self.fake, lambda: self.now * 1_000_000, settings)

    def make(self, path: str) -> str:
        self.mkdir(path, 0o755)
        return path

    def put(self, path: str, text: str) -> int:
        return self.write(f"{path}/tasks", text.encode(), WRITER)

    def members(self, path: str) -> list[int]:
        return [int(line) for line in self.read(f"{path}/tasks").splitlines()]

    def last_status(self) -> str:
        return self.read("info/last_cmd_status")

    def rmid(self, path: str) -> int:
        return self.resolve(path).group.rmid


class Raises:
    """`with Raises(errno.X):` with the errno compared, and named when it differs."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __enter__(self) -> None:
        pass

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> bool:
        assert error is None or isinstance(error, OSError), repr(error)
        got = errno.errorcode[error.errno or 0] if error else "ok"
        assert got == errno.errorcode[self.number]
        return True


# ---- RMIDs and limbo ----


def test_the_smaller_number_of_rmids_limits() -> None:
    m = ModelOfFakeTasks(rmids=32, aet_rmids=3)
    m.make("mon_groups/a")
    m.make("mon_groups/b")
    with Raises(errno.ENOSPC):
        m.make("mon_groups/c")
    assert m.read("info/L3_MON/num_rmids") == "32\n"
    assert m.read("info/PERF_PKG_MON/num_rmids") == "3\n"


def test_limbo_fails_with_ebusy_until_a_look_finds_the_rmid_clean() -> None:
    m = ModelOfFakeTasks(rmids=2, decay_ms=1500, limbo_tick_ms=1000)
    m.make("mon_groups/a")
    with Raises(errno.ENOSPC):
        m.make("mon_groups/b")
    m.rmdir("mon_groups/a")
    for m.now in (0, 1000, 1500, 1999):
        with Raises(errno.EBUSY):
            m.make("mon_groups/b")
        assert m.last_status() == "Out of RMIDs\n"
    m.now = 2000
    m.make("mon_groups/b")


def test_limbo_never_ends_at_threshold_0() -> None:
    m = ModelOfFakeTasks(rmids=2)
    m.write("info/L3_MON/max_threshold_occupancy", b"0\n", WRITER)
    m.rmdir(m.make("mon_groups/a"))
    m.now = 3_600_000
    with Raises(errno.EBUSY):
        m.make("mon_groups/b")
    m.write("info/L3_MON/max_threshold_occupancy", b"65536\n", WRITER)
    m.now += 1000
    m.make("mon_groups/b")


# ---- tasks ----


def test_a_reused_pid_is_another_task() -> None:
    m = ModelOfFakeTasks()
    m.make("mon_groups/x")
    m.fake.start(20)
    m.put("mon_groups/x", "20")
    del m.fake.tasks[20]
    m.fake.start(20)
    assert m.members("mon_groups/x") == []


def test_a_reused_parent_pid_is_no_parent() -> None:
    m = ModelOfFakeTasks()
    m.make("mon_groups/x")
    m.fake.start(20)
    m.fake.start(31, parent=30)
    m.fake.start(30)
    m.fake.tasks[31] = Task(31, 31, 30, m.fake.tasks[20].starttime)
    m.put("mon_groups/x", "30")
    assert m.members("mon_groups/x") == [30]


def test_a_stale_rmid_turns_up_in_the_next_group_that_gets_it() -> None:
    m = ModelOfFakeTasks(rmids=2, decay_ms=0)
    m.make("mon_groups/x")
    m.rmdir("mon_groups/x")
    m.stray(7, 0, 1)
    assert m.cpu_resctrl_groups(7) == "res:/\nmon:\n"
    m.make("mon_groups/y")
    assert m.members("mon_groups/y") == [7]
    m.put("/", "7")
    assert m.members("mon_groups/y") == []


def test_a_stray_is_known_by_its_rmid_alone() -> None:
    m = ModelOfFakeTasks()
    m.make("mon_groups/x")
    m.stray(7, 3, m.rmid("mon_groups/x"))
    assert m.members("mon_groups/x") == [7]
    assert 7 not in m.members("/")
    with Raises(errno.ENOENT):
        m.cpu_resctrl_groups(7)
    m.rmdir("mon_groups/x")
    assert m.cpu_resctrl_groups(7) == "res:/\nmon:\n"


# ---- counters ----

ENERGY = "mon_data/mon_PERF_PKG_00/core_energy"
TRAFFIC = "mon_data/mon_L3_00/mbm_total_bytes"


def test_counters_of_a_new_and_of_a_used_rmid() -> None:
    m = ModelOfFakeTasks(rmids=2, decay_ms=0)
    m.make("mon_groups/a")
    assert m.read(f"mon_groups/a/{ENERGY}") == "Unavailable\n"
    assert m.read(f"mon_groups/a/{TRAFFIC}") == "0\n"
    m.put("mon_groups/a", "7")
    assert m.read(f"mon_groups/a/{ENERGY}") == "0.000000\n"
    m.set_counter("mon_groups/a", "mon_PERF_PKG_00", "core_energy", "3.001953")
    m.set_counter("mon_groups/a", "mon_L3_00", "mbm_total_bytes", 10)
    m.rmdir("mon_groups/a")
    m.make("mon_groups/b")
    assert m.read(f"mon_groups/b/{ENERGY}") == "3.001953\n"
    assert m.read(f"mon_groups/b/{TRAFFIC}") == "0\n"


def test_counters_move_only_on_request() -> None:
    m = ModelOfFakeTasks()
    m.make("mon_groups/a")
    m.make("mon_groups/idle")
    m.put("mon_groups/a", "7")
    m.grow("1.5")
    m.add("mon_groups/a", "mon_PERF_PKG_00", "core_energy", 0.25)
    assert m.read(f"mon_groups/a/{ENERGY}") == "1.750000\n"
    assert m.read(f"mon_groups/a/{TRAFFIC}") == "1\n"
    assert m.read(f"mon_groups/idle/{ENERGY}") == "Unavailable\n"
    with pytest.raises(ValueError, match="no counter"):
        m.add("mon_groups/a", "mon_L3_07", "llc_occupancy", 1)


def test_a_ctrl_groups_counter_is_the_sum_of_what_has_a_number() -> None:
    m = ModelOfFakeTasks()
    m.make("mon_groups/a")
    m.make("mon_groups/b")
    m.set_counter("/", "mon_PERF_PKG_00", "core_energy", 1)
    m.set_counter("mon_groups/a", "mon_PERF_PKG_00", "core_energy", 2)
    assert m.read(ENERGY) == "3.000000\n"
    m.set_counter("mon_groups/a", "mon_PERF_PKG_00", "core_energy", "Unassigned")
    assert m.read(f"mon_groups/a/{ENERGY}") == "Unassigned\n"
    assert m.read(ENERGY) == "1.000000\n"


# ---- the rest ----


def test_schemata_and_size_read_as_the_kernel_prints_them() -> None:
    m = ModelOfFakeTasks()
    assert m.read("schemata") == "    MB:0=100;1=100\n    L3:0=fff;1=fff\n"
    assert m.read("size") == "    MB:0=100;1=100\n    L3:0=16777212;1=16777212\n"
    assert ModelOfFakeTasks(closids=0).read("schemata") == ""


def test_injections_strike_as_often_as_set() -> None:
    m = ModelOfFakeTasks()
    m.injections.append(Injection("mkdir", "/x", errno.EIO, times=2, after=1))
    outcomes = []
    for path in ("mon_groups/y", "gold", "gold/mon_groups/x", "mon_groups/x", "mon_groups/x", "mon_groups/x"):
        try:
            m.make(path)
            outcomes.append("ok")
        except OSError as error:
            outcomes.append(errno.errorcode[error.errno or 0])
    assert outcomes == ["ok", "ok", "ok", "EIO", "EIO", "ok"]


@pytest.mark.parametrize("text", ["", "+", "-", "0x", "1_0", "１", "0b1", "1 ", "--1", "1\n\n", "2147483648"])  # noqa: RUF001
def test_numbers_that_the_kernel_refuses(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text) or "^$"):
        kernel_int(text)


def test_a_comm_can_hold_anything() -> None:
    text = "12 (a) R (b c) S 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 99 21"
    stat = parse_stat(text)
    assert (stat.comm, stat.state, stat.ppid) == ("a) R (b c", "S", 3)


# --- Shapes of which there is the documentation alone


def test_a_machine_with_occupancy_only_has_no_other_counter() -> None:
    m = ModelOfFakeTasks(**shapes.OCCUPANCY_ONLY)
    m.make("mon_groups/x")
    assert m.read("info/L3_MON/mon_features") == "llc_occupancy\n"
    assert m.listdir("mon_groups/x/mon_data/mon_L3_00") == ["llc_occupancy"]
    assert m.read("info/L3_MON/mbm_assign_mode") == "[default]\n"


def test_each_group_gets_its_counters_until_there_are_none() -> None:
    m = ModelOfFakeTasks(**shapes.AMD | {"mbm_cntrs": 5})
    assert m.read("info/L3_MON/num_mbm_cntrs") == "0=5;1=5\n"
    assert m.read("info/L3_MON/available_mbm_cntrs") == "0=3;1=3\n", "the root group has two"
    m.make("mon_groups/x")
    assert m.last_status() == "ok\n"
    m.make("mon_groups/y")
    assert m.last_status() == "Failed to allocate counter for mbm_local_bytes in domain 0\n"
    assert m.read("mon_groups/y/mbm_L3_assignments") == "mbm_total_bytes:0=e;1=e\nmbm_local_bytes:0=_;1=_\n"
    m.grow(7)
    texts = [m.read(f"mon_groups/y/mon_data/mon_L3_01/{event}") for event in assigned.MBM_EVENTS]
    assert texts == ["0\n", "Unassigned\n"]
    m.rmdir("mon_groups/x")
    assert m.read("info/L3_MON/available_mbm_cntrs") == "0=2;1=2\n"


def test_without_assignment_on_mkdir_a_group_has_no_counter_until_it_is_given_one() -> None:
    m = ModelOfFakeTasks(**shapes.AMD_ABMC)
    m.write("info/L3_MON/mbm_assign_on_mkdir", b"0\n", WRITER)
    path = m.make("mon_groups/x")
    m.put(path, str(WRITER))
    m.grow(7)
    assert m.read(f"{path}/mon_data/mon_L3_00/mbm_total_bytes") == "Unassigned\n"
    m.write(f"{path}/mbm_L3_assignments", b"mbm_total_bytes:*=e\nmbm_local_bytes:1=e;0=_\n", WRITER)
    m.grow(5)
    assert m.read(f"{path}/mon_data/mon_L3_00/mbm_total_bytes") == "5\n", "what came earlier was not counted"
    assert m.read(f"{path}/mbm_L3_assignments") == "mbm_total_bytes:0=e;1=e\nmbm_local_bytes:0=_;1=e\n"


@pytest.mark.parametrize("text", ["mbm_total_bytes:9=e\n", "mbm_total_bytes:0=x\n", "energy:0=e\n", "x\n"])
def test_assignments_that_are_refused(text: str) -> None:
    m = ModelOfFakeTasks(**shapes.AMD_ABMC)
    with Raises(errno.EINVAL):
        m.write("mbm_L3_assignments", text.encode(), WRITER)
    assert m.last_status().startswith("Invalid ")


def test_no_counter_is_left_to_assign() -> None:
    m = ModelOfFakeTasks(**shapes.AMD | {"mbm_cntrs": 2})
    m.make("mon_groups/x")
    with Raises(errno.ENOSPC):
        m.write("mon_groups/x/mbm_L3_assignments", b"mbm_total_bytes:1=e\n", WRITER)
    assert m.last_status() == "Failed to allocate counter for mbm_total_bytes in domain 1\n"


def test_in_default_mode_every_group_is_counted_and_nothing_assigned() -> None:
    m = ModelOfFakeTasks(**shapes.AMD_ABMC)
    assert m.read("info/L3_MON/mbm_assign_mode") == "[mbm_event]\ndefault\n"
    m.write("info/L3_MON/mbm_assign_mode", b"default\n", WRITER)
    assert m.read("info/L3_MON/mbm_assign_mode") == "[default]\nmbm_event\n"
    assert m.read("mon_data/mon_L3_00/mbm_total_bytes") == "0\n"
    for name in ("info/L3_MON/available_mbm_cntrs", "info/L3_MON/mbm_assign_on_mkdir", "mbm_L3_assignments"):
        with Raises(errno.EINVAL):
            m.read(name)
    m.write("info/L3_MON/mbm_assign_mode", b"mbm_event\n", WRITER)
    assert m.read("mon_data/mon_L3_00/mbm_total_bytes") == "Unassigned\n", "only new groups get counters"


def test_on_arm64_each_ctrl_group_has_rmids_of_its_own() -> None:
    m = ModelOfFakeTasks(**shapes.MPAM, debug=True)
    assert m.read("info/L3_MON/num_rmids") == "32\n"
    for name in "abc":
        m.make(f"mon_groups/{name}")
    with Raises(errno.ENOSPC):
        m.make("mon_groups/d")
    assert m.last_status() == "Out of RMIDs\n"
    m.make("gold")
    m.make("gold/mon_groups/a")
    ids = [m.read(f"{path}/mon_hw_id") for path in ("mon_groups/a", "gold", "gold/mon_groups/a")]
    assert ids == ["1\n", "0\n", "1\n"], "PMGs: the same one in both, of another PARTID"


def test_on_arm64_rmids_in_limbo_are_enospc_while_another_ctrl_group_has_some() -> None:
    m = ModelOfFakeTasks(**shapes.MPAM)
    for name in "abc":
        m.make(f"mon_groups/{name}")
    m.rmdir("mon_groups/a")
    with Raises(errno.ENOSPC):
        m.make("mon_groups/d")
    m.now += 3000
    m.make("mon_groups/d")


def test_on_arm64_a_new_ctrl_group_gets_the_closid_with_the_fewest_rmids_in_limbo() -> None:
    m = ModelOfFakeTasks(**shapes.MPAM)
    m.make("gold")
    assert m.resolve("gold").group.closid == 1
    m.rmdir("gold")
    m.make("gold")
    assert m.resolve("gold").group.closid == 2


def test_on_arm64_a_task_is_in_the_group_of_its_partid_and_pmg() -> None:
    m = ModelOfFakeTasks(**shapes.MPAM)
    m.make("mon_groups/a")
    m.make("gold")
    m.make("gold/mon_groups/a")
    m.put("mon_groups/a", str(WRITER))
    assert (m.members("mon_groups/a"), m.members("gold/mon_groups/a")) == ([WRITER], [])


def test_on_arm64_local_traffic_is_not_told_apart_and_the_mode_is_fixed() -> None:
    m = ModelOfFakeTasks(**shapes.MPAM_ASSIGNED)
    assert m.read("info/L3_MON/mon_features") == "llc_occupancy\nmbm_total_bytes\n"
    assert m.read("info/L3_MON/mbm_assign_mode") == "[mbm_event]\n"
    with Raises(errno.EINVAL):
        m.write("info/L3_MON/mbm_assign_mode", b"default\n", WRITER)
    assert m.last_status() == "Counter assignment mode is not configurable\n"


@pytest.mark.parametrize("knobs", [{"packages": 2}, {"closids": 0}, {"rmids": 31}])
def test_an_arm64_that_cannot_be_is_refused(knobs: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="mpam"):
        Knobs(**shapes.MPAM | knobs)
