# SPDX-License-Identifier: Apache-2.0
"""Finds running processes of NRI's hook-injector.

Upstream deploys it as a pod, whose author could be any: such a process is a claim, and nothing of it is read.
Source: contrib/kustomize/hook-injector and plugins/hook-injector of containerd/nri.
"""

from __future__ import annotations

import os

from hook.base import container_tasks
from hook.host import host_processes

_NAME = "hook-injector"
_IN_AN_IMAGE = "plugin"  # the name of every plugin's program in upstream's images


def find_running() -> list[int]:
    """The pids of injectors that run on the host itself."""
    return sorted(host_processes.find(lambda words: os.path.basename(words[0]).endswith(_NAME)).words)


def find_claims() -> list[int]:
    """The pids of processes in pods that have an injector's name, which proves nothing."""
    processes = container_tasks.table().values()
    named = [it for it in processes if it.name.endswith(_NAME) or it.name == _IN_AN_IMAGE]
    return sorted(it.pid for it in named if host_processes.is_in_container(it.cgroups))
