"""Real Podman and runc on the model of resctrl."""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Callable

import pytest

from tests.podman.node import Node
from tests.resctrlfs import mounted
from tests.support.containers import missing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    StartNode = Callable[..., Node]


@pytest.fixture
def start_node(tmp_path: Path) -> Iterator[StartNode]:
    """Makes a node whose hook has the given options."""
    reason = missing()
    if reason:
        pytest.skip(reason)
    with ExitStack() as stack:

        def start(*options: str) -> Node:
            resctrl = stack.enter_context(mounted(tmp_path))
            node = Node(tmp_path, resctrl, *options)
            stack.enter_context(closing(node.lab))
            return node

        yield start


@pytest.fixture
def node(start_node: StartNode) -> Node:
    return start_node()
