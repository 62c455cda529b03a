# SPDX-License-Identifier: Apache-2.0
"""What is charged to no pod: the ctrl_groups' counters less those of their mon_groups, whatever changes meanwhile."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hook.base.counters import MILLION
from hook.base.resctrl import Resctrl
from hook.observe.prometheus import Former
from hook.observe.snapshot import Uncharged, take_snapshot
from tests.unit.nodes import NodeFiles

ENERGY = "mon_PERF_PKG_00/core_energy"
OCCUPANCY = "mon_L3_00/llc_occupancy"


@pytest.fixture
def node(tmp_path: Path) -> NodeFiles:
    return NodeFiles(tmp_path)


def read_uncharged(node: NodeFiles) -> Uncharged:
    return take_snapshot(node.options, has_uncharged=True).uncharged


def test_what_mon_groups_count_is_taken_off(node: NodeFiles) -> None:
    """Also what those of other tools do: it is not the ctrl_group's own."""
    node.make("oci-a", counters={ENERGY: "10.5", OCCUPANCY: "64"})
    node.make("theirs", counters={ENERGY: "1", OCCUPANCY: "Unavailable"})
    node.count_whole({ENERGY: "20", OCCUPANCY: "100"})
    node.make("oci-a", "gold", {ENERGY: "3"})
    node.count_whole({ENERGY: "5"}, "gold")
    assert read_uncharged(node) == {
        "/": {ENERGY: 8_500_000, OCCUPANCY: 36 * MILLION},
        "gold": {ENERGY: 2 * MILLION},
    }


def test_what_is_no_number_is_none_and_nothing_is_negative(node: NodeFiles) -> None:
    node.make("oci-a", counters={OCCUPANCY: "64"})
    node.count_whole({ENERGY: "Unavailable", OCCUPANCY: "1"})
    assert read_uncharged(node) == {"/": {ENERGY: None, OCCUPANCY: 0}}


def test_without_a_mount_there_is_nothing(node: NodeFiles) -> None:
    shutil.rmtree(node.root)
    assert read_uncharged(node) == {}


@pytest.mark.parametrize("times", [1, 99])
def test_a_group_that_comes_meanwhile_is_not_taken_for_tasks_without_a_group(
    node: NodeFiles, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """Its RMID counted for another one before: that is in the sum at once."""
    node.count_whole({ENERGY: "20"})
    read, left = Resctrl.counters, [times]

    def read_while_groups_come(kernel: Resctrl, path: str) -> dict[str, str]:
        if path == str(node.root) and left[0]:
            left[0] -= 1
            node.make(f"oci-{left[0]}", counters={ENERGY: "4000"})
            node.count_whole({ENERGY: str(20 + 4000 * (times - left[0]))})
        return read(kernel, path)

    monkeypatch.setattr(Resctrl, "counters", read_while_groups_come)
    assert read_uncharged(node) == ({"/": {ENERGY: 20 * MILLION}} if times == 1 else {})


def test_a_group_that_goes_meanwhile_is_read_again(node: NodeFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    node.make("oci-a", counters={ENERGY: "12"})
    node.count_whole({ENERGY: "20"})
    read = Resctrl.counters

    def read_while_a_group_goes(kernel: Resctrl, path: str) -> dict[str, str]:
        found = read(kernel, path)
        if path == str(node.root) and node.path("oci-a").exists():
            shutil.rmtree(node.path("oci-a"))
            node.count_whole({ENERGY: "8"})
        return found

    monkeypatch.setattr(Resctrl, "counters", read_while_a_group_goes)
    assert read_uncharged(node) == {"/": {ENERGY: 8 * MILLION}}


@pytest.mark.parametrize(("now", "held"), [(90, 100), (None, 100), (110, 110), (3, 3)])
def test_a_difference_is_held_when_it_dips_but_not_when_it_starts_again(now: int | None, held: int) -> None:
    assert Former(1.0, {"x": 100}).hold_difference("x", now) == held
    assert Former().hold_difference("x", now) == now
