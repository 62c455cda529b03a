# SPDX-License-Identifier: Apache-2.0
"""Nodes: a machine with resctrl, the hook and a containerd."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Callable

import pytest

from fetch import provision
from tests.containerd.injecting import Injecting
from tests.containerd.node import ContainerdNode, OfBaseSpec
from tests.resctrlfs import mounted
from tests.support import newest
from tests.support.debian import CannotMake
from tests.support.hook import PATIENT

StartNode = Callable[[str, str], ContainerdNode]


CONTAINERDS = {
    "base-spec": lambda machine: OfBaseSpec([*machine.directories, PATIENT, "--linger=60"]),
    "injected": Injecting,
}


@pytest.fixture
def start_node(tmp_path: Path) -> Iterator[StartNode]:
    """Makes a node: how its containerd gives containers the hook,
    and by which runtime it runs them.
    """
    if absent := provision.missing(provision.TEST):
        pytest.skip("; ".join(absent))
    with ExitStack() as stack:

        def start(kind: str, runtime: str) -> ContainerdNode:
            if kind == "injected":
                try:
                    newest.ready()
                except CannotMake as reason:
                    pytest.skip(str(reason))
            resctrl = stack.enter_context(mounted(tmp_path))
            node = ContainerdNode(tmp_path, resctrl, CONTAINERDS[kind], runtime)
            stack.enter_context(closing(node.containerd))
            return node

        yield start
