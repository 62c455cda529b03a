# SPDX-License-Identifier: Apache-2.0
"""Real Podman and runc on the model of resctrl."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Callable

import pytest

from tests.podman.node import PodmanNode
from tests.resctrlfs import mounted
from tests.support.containers import missing

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
