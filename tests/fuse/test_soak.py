# SPDX-License-Identifier: Apache-2.0
"""The soak of tests/faults in little, and whether it would see what is wrong."""

from __future__ import annotations

import subprocess
from contextlib import closing
from pathlib import Path
from typing import Callable

import pytest

from tests.faults import soak
from tests.faults.campaign import Campaign
from tests.faults.soak import Size, Soak, SoakFailed, is_flat
from tests.support.hook import Hook, created, end, stopped, task

PODS = 60
Spoil = Callable[[Hook, subprocess.Popen[bytes]], object]


@pytest.mark.usefixtures("resctrl")  # or is skipped where it cannot be had
def test_what_lives_has_its_group_and_its_files_and_nothing_else_has(tmp_path: Path) -> None:
    with closing(Campaign(tmp_path, most=PODS)) as campaign:
        soak.run(campaign)
    assert not campaign.failures
    assert [row.cases for row in campaign.rows] == [PODS]


@pytest.fixture
def node(hook: Hook, tmp_path: Path) -> Soak:
    """One on which a container came and went."""
    with task() as process:
        hook(created("c1", process.pid))
        end(process)
        hook(stopped("c1"))
    (tmp_path / "errors").touch()
    return Soak(hook, [], tmp_path / "errors")


SPOILED: dict[str, Spoil] = {
    "groups": lambda hook, init: hook(created("c2", init.pid)),
    "what hooks left for reconcile: .*oci-x": lambda hook, _: (hook.resctrl_root / "mon_groups/oci-x").mkdir(),
    "what hooks left for reconcile: .*tidy": lambda hook, _: (hook.run_dir / "groups/.x.tmp").touch(),
    "files": lambda hook, _: (hook.run_dir / "groups/x.json.unreadable-1").touch(),
    "what hooks said": lambda hook, _: (hook.run_dir.parent / "errors").write_text("no room"),
}


@pytest.mark.parametrize(("what", "spoil"), SPOILED.items(), ids=SPOILED)
def test_what_is_left_is_seen(node: Soak, init: subprocess.Popen[bytes], what: str, spoil: Spoil) -> None:
    node.look()
    spoil(node.hook, init)
    with pytest.raises(SoakFailed, match=f"^{what}"):
        node.look()


@pytest.mark.parametrize("now", [Size(11, 8192), Size(10, 1 << 20)])
def test_a_run_directory_that_grows_is_seen(now: Size) -> None:
    is_flat(Size(10, 8192), Size(10, 12288))
    with pytest.raises(SoakFailed, match="the run directory was"):
        is_flat(Size(10, 8192), now)
