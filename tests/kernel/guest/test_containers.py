# SPDX-License-Identifier: Apache-2.0
"""runc, crun and Podman: what a container finds itself in before it has run a single instruction."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Callable

import pytest

from tests.support.containers import Lab
from tests.support.hook import UID, Hook

if TYPE_CHECKING:
    from pathlib import Path

    from tests.kernel.guest.oci import Runtimes

GROUP = f"oci-{UID}"
POD = {"io.kubernetes.pod.uid": UID}
BOTH = pytest.mark.parametrize("runtime", ["runc", "crun"])
SCHEMA = "L3:0=f"


@BOTH
def test_the_first_that_a_container_reads_is_its_group(hook: Hook, runtimes: Runtimes, runtime: str) -> None:
    container = runtimes.start(runtime, "c1")
    assert container.seen() == "res:/\nmon:oci-c1\n"
    assert hook.tasks("oci-c1") == {container.pid()}
    container.finish()
    hook.assert_clean()


@BOTH
def test_the_containers_of_a_pod_are_in_one_group(hook: Hook, runtimes: Runtimes, runtime: str) -> None:
    first = runtimes.start(runtime, "c1", annotations=POD)
    second = runtimes.start(runtime, "c2", annotations=POD)
    assert {first.seen(), second.seen()} == {f"res:/\nmon:{GROUP}\n"}
    first.finish()
    assert hook.tasks(GROUP) == {second.pid()}
    second.finish()
    hook.assert_clean()


def test_a_pod_whose_containers_are_in_different_ctrl_groups(hook: Hook, runtimes: Runtimes, root: Path) -> None:
    (root / "gold").mkdir()
    plain = runtimes.start("runc", "c1", annotations=POD)
    gold = runtimes.start("runc", "c2", annotations=POD, intel_rdt={"closID": "gold"})
    assert plain.seen() == f"res:/\nmon:{GROUP}\n"
    assert gold.seen() == f"res:gold\nmon:{GROUP}\n"
    assert hook.groups() == {GROUP, f"gold/{GROUP}"}
    plain.finish()
    gold.finish()
    hook.assert_clean()
    assert (root / "gold").exists(), "the administrator's, or the runtime's, but not ours"


def test_a_ctrl_group_that_runc_makes_and_removes_before_poststop(hook: Hook, runtimes: Runtimes, root: Path) -> None:
    container = runtimes.start("runc", "c1", intel_rdt={"l3CacheSchema": SCHEMA})
    assert container.seen() == "res:c1\nmon:oci-c1\n"
    assert hook.groups() == {"c1/oci-c1"}
    container.finish()
    assert not (root / "c1").exists(), "runc removes it; otherwise this test is about nothing"
    assert container.errors() == ""
    assert hook.leftovers() == set()


@BOTH
def test_a_monitoring_group_that_the_runtime_made_is_left(
    hook: Hook, runtimes: Runtimes, root: Path, runtime: str
) -> None:
    """Newer runtimes do so themselves with linux.intelRdt.enableMonitoring, and before they call the hook."""
    groups = root / "mon_groups"
    container = runtimes.start(runtime, "c1", before=f"mkdir {groups}/$id; echo $pid > {groups}/$id/tasks")
    assert container.seen() == "res:/\nmon:oci-c1\n"
    assert hook.key("c1")["members"]["c1"]["taken_from"] == "c1"
    assert hook.groups() == {"c1", "oci-c1"}
    assert hook.tasks("c1") == set()
    container.finish()
    assert hook.groups() == {"c1"}
    assert hook.leftovers() == set()


@BOTH
def test_groups_wiped_while_containers_run(hook: Hook, runtimes: Runtimes, root: Path, runtime: str) -> None:
    """pqos resets resctrl so, and CRI-O removes what is empty when it starts."""
    first = runtimes.start(runtime, "c1", annotations=POD)
    first.seen()
    (root / "mon_groups" / GROUP).rmdir()
    second = runtimes.start(runtime, "c2", annotations=POD)
    assert second.seen() == f"res:/\nmon:{GROUP}\n"
    (root / "mon_groups" / GROUP).rmdir()
    first.finish()
    second.finish()
    assert (first.errors(), second.errors()) == ("", "")
    hook.assert_clean()


@BOTH
def test_resctrl_unmounted_while_a_container_runs(
    hook: Hook, runtimes: Runtimes, umount: Callable[[], None], runtime: str
) -> None:
    container = runtimes.start(runtime, "c1")
    container.seen()
    umount()
    container.finish()
    assert container.errors() == ""
    assert hook.leftovers() == set()


def test_podman(hook: Hook) -> None:
    with closing(Lab([*hook.command("hook")[2:]])) as lab:
        gate = lab.run("web")
        container = lab.container_id("web")
        assert lab.init("web").pid in hook.tasks(f"oci-{container}")
        gate.open()
        lab.watch.wait("poststop", container)
    hook.assert_clean()
