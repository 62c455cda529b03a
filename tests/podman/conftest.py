# SPDX-License-Identifier: Apache-2.0
"""A machine with resctrl (the model), our hook, and real Podman and runc."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Collection, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Callable

import pytest

from tests.resctrlfs import Mounted, mounted
from tests.support.containers import DEADLINE, Lab, missing
from tests.support.hook import PATIENT
from tests.support.observed import Observed


class PodmanNode(Observed):
    """The hook has these options beside its directories."""

    def __init__(self, directory: Path, resctrl: Mounted, *options: str) -> None:
        super().__init__(directory, resctrl)
        self.lab = Lab([*self.directories, PATIENT, *options])

    def reconcile(self, *options: str, of: Collection[str] | None = None) -> list[dict[str, Any]]:
        """Run it, and return what it did; `of` is as list_actions has it."""
        command = [str(self.lab.hook), "reconcile", *self.directories, "--json", *options]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=10 * DEADLINE
        )
        return list_actions(done, of)


def list_actions(
    done: subprocess.CompletedProcess[str], of: Collection[str] | None = None
) -> list[dict[str, Any]]:
    """What a `reconcile --json` has done; a problem fails the test.

    `of`: only problems of these keys and containers do.
    --adopt finds other containers of the machine, too.
    """
    assert done.stderr == ""
    actions: list[dict[str, Any]] = json.loads(done.stdout)["actions"]
    failed = [action for action in actions if action["problem"]]
    assert done.returncode <= bool(failed), done
    assert not [
        action
        for action in failed
        if of is None or action["key"] in of or action["container"] in of
    ]
    return actions


StartNode = Callable[..., PodmanNode]


@pytest.fixture
def start_node(tmp_path: Path) -> Iterator[StartNode]:
    """Makes a node whose hook has the given options."""
    if reason := missing():
        pytest.skip(reason)
    with ExitStack() as stack:

        def start(*options: str) -> PodmanNode:
            resctrl = stack.enter_context(mounted(tmp_path))
            node = PodmanNode(tmp_path, resctrl, *options)
            stack.enter_context(closing(node.lab))
            return node

        yield start


@pytest.fixture
def node(start_node: StartNode) -> PodmanNode:
    return start_node()
