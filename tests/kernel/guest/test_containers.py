# SPDX-License-Identifier: Apache-2.0
"""runc, crun and Podman: what a container finds itself in before it has
run a single instruction.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.kernel.inside import fill
from tests.support.containers import CRUN, READ_GROUPS, Lab, RuncContainer
from tests.support.hook import UID, Hook

GROUP = f"oci-{UID}"
POD = {"io.kubernetes.pod.uid": UID}
BOTH = pytest.mark.parametrize("runtime", [("runc",), CRUN], ids=["runc", "crun"])
SCHEMA = "L3:0=f"
MAKE_GROUP = """\
state=$(cat)
mkdir GROUPS/c1
echo "$state" | sed -n 's/.*"pid": *\\([0-9]*\\).*/\\1/p' >GROUPS/c1/tasks
"""


def start_with_rdt(
    lab: Lab, name: str, annotations: dict[str, str], **intel_rdt: str
) -> RuncContainer:
    """Start a container whose config.json names a ctrl_group;
    what it reads first is which groups it is in.
    """
    config = lab.runc_config(name, [], annotations)
    config["linux"]["intelRdt"] = intel_rdt
    container = lab.start_runc(name, config, first=READ_GROUPS)
    container.line = container.gate.wait_up()
    return container


def test_a_pod_whose_containers_are_in_different_ctrl_groups(
    hook: Hook, lab: Lab, root: Path
) -> None:
    (root / "gold").mkdir()
    plain = lab.runc("c1", POD, first=READ_GROUPS)
    gold = start_with_rdt(lab, "c2", POD, closID="gold")
    assert plain.line == f"res:/ mon:{GROUP} "
    assert gold.line == f"res:gold mon:{GROUP} "
    assert hook.groups() == {GROUP, f"gold/{GROUP}"}
    plain.end()
    gold.end()
    hook.assert_clean()
    assert (root / "gold").exists(), "the administrator's, or the runtime's, but not ours"


def test_a_ctrl_group_that_runc_makes_and_removes_before_poststop(
    hook: Hook, lab: Lab, root: Path
) -> None:
    container = start_with_rdt(lab, "c1", {}, l3CacheSchema=SCHEMA)
    assert container.line == "res:c1 mon:oci-c1 "
    assert hook.groups() == {"c1/oci-c1"}
    container.end()
    assert not (root / "c1").exists(), "runc removes it; otherwise this test is about nothing"
    assert hook.leftovers() == set()


@BOTH
def test_a_monitoring_group_that_the_runtime_made_is_left(
    hook: Hook, lab: Lab, root: Path, runtime: Sequence[str]
) -> None:
    """Newer runtimes do so themselves with linux.intelRdt.enableMonitoring,
    and before they call the hook.
    """
    groups = root / "mon_groups"
    config = lab.runc_config("c1", [], {})
    make_group = lab.hook_entry(
        Path("/bin/sh"), ["sh", "-ec", MAKE_GROUP.replace("GROUPS", str(groups))]
    )
    config["hooks"]["createRuntime"] = [make_group, *config["hooks"]["createRuntime"]]
    container = lab.start_runc("c1", config, runtime, first=READ_GROUPS)
    assert container.gate.wait_up() == "res:/ mon:oci-c1 "
    assert hook.key("c1")["members"]["c1"]["taken_from"] == "c1"
    assert hook.groups() == {"c1", "oci-c1"}
    assert hook.tasks("c1") == set()
    container.end()
    assert hook.groups() == {"c1"}
    assert hook.leftovers() == set()


@BOTH
def test_a_container_starts_without_an_rmid(
    hook: Hook, lab: Lab, root: Path, runtime: Sequence[str]
) -> None:
    fill(root / "mon_groups")
    container = lab.runc("c1", runtime=runtime, first=READ_GROUPS)
    assert container.line == "res:/ mon: "
    assert hook.reasons() == {"c1": "no_rmids"}
    container.end()
    assert hook.leftovers() == set()


def test_strict_stops_it(hook: Hook, lab: Lab, root: Path) -> None:
    fill(root / "mon_groups")
    container = lab.start_runc("c1", lab.runc_config("c1", [], {}, "--strict"))
    assert container.wait() != 0
    assert "no_rmids" in container.output()
    assert hook.leftovers() == set(), "runc has called poststop"
