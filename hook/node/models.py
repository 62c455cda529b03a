# SPDX-License-Identifier: Apache-2.0
"""What only the commands read and write: their own records below /run, and the files of hooks.d. No hook loads this.

Pydantic models as those in `models.py`, which says how they are used. In the .pyz `node_models_compiled.py` takes the
place of this module.
"""

# ruff: noqa: RUF012  pydantic copies a default

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hook.models import Key, Model, Natural, Seconds, Version


class ReconcileRecord(Model):
    """`reconcile.json`: the work of reconcile and watch since boot.

    `started_at`, `ended_at`: Unix times (s) of the last start, and of the end of the last complete run. Of that run:
    `seconds`, its duration; `failed`, its failed actions, without those of containers that stay unmonitored and of
    lines of history that wait; `left`, the problems that it may not change; `outside`, the threads that are still
    outside their group, by container, for at most a hundred containers; `outside_total`, the same of all containers;
    `elsewhere`, the threads that stay in another ctrl_group or another tool's group, by its path, for at most a hundred
    groups; `looked_at`, when its last look at the node began (CLOCK_BOOTTIME, s); `unread`, the number of keys, cgroups
    and processes that it could not read. Since boot, by verb: `actions` done, and `failures`; `late_cpu` as in
    KeyState, of all keys.
    """

    version: Version = 1
    started_at: Seconds | None = None
    ended_at: Seconds | None = None
    seconds: Seconds = 0.0
    failed: Natural = 0
    left: Natural = 0
    outside: dict[str, Natural] = {}
    outside_total: Natural = 0
    elsewhere: dict[str, Natural] = {}
    looked_at: Seconds = 0.0
    unread: Natural = 0
    actions: dict[str, Natural] = {}
    failures: dict[str, Natural] = {}
    late_cpu: Seconds = 0.0


class WatchRecord(Model):
    """`watch.json`: the work of the running `watch` since its start. SIGTERM makes it remove this file.

    `started_at`, `alive_at`: Unix times (s) of its start, and of this record. `moved`: threads that it moved into their
    groups; `followed`: containers that it followed to another ctrl_group; `failed`: processes that it could not move;
    `overflows`: how often the kernel dropped exec events.
    """

    version: Version = 1
    started_at: Seconds = 0.0
    alive_at: Seconds = 0.0
    moved: Natural = 0
    followed: Natural = 0
    failed: Natural = 0
    overflows: Natural = 0


class UnhookedContainer(Model):
    """A container that was never hooked: the names of its pod, and its own name in the pod; None: unknown."""

    namespace: str | None = None
    pod: str | None = None
    name: str | None = None


class Unhooked(Model):
    """`unhooked.json`: the running containers that no hook was called for, when reconcile last looked.

    `since`: when it looked. `containers`: by ID. `unchecked`: for so many no runtime could be asked. `others`: those
    that no hook was meant for, by the `rules` of that time. `sandboxes`: those that hold a pod's sandbox.
    """

    version: Version = 1
    since: str
    containers: dict[Key, UnhookedContainer]
    unchecked: Natural
    rules: str
    others: list[str]
    sandboxes: list[str] = []


class JobContainer(Model):
    """A container of a Job."""

    id: str
    name: str | None = None


class Job(Model):
    """A line of the file of `--history`: what one incarnation of a key used, written when it ended.

    `id`: the same if the same incarnation is written again, whose last line counts. Times are RFC 3339, UTC. `lives`:
    how many lives of its containers it joins. `use`: by event, in base units; what is known of it. `unknown`: events of
    which a part is unknown. `more_containers`: how many `containers` lacks.
    """

    version: Version = 1
    id: str
    kind: str
    key: Key
    namespace: str | None = None
    pod: str | None = None
    containers: list[JobContainer] = []
    more_containers: Natural = 0
    begin: str | None = None
    end: str
    seconds: Seconds | None = None
    lives: Natural = 1
    use: dict[str, Annotated[float, Field(ge=0, le=1e24)]] = {}
    unknown: list[str] = []
    late_cpu_seconds: Seconds = 0.0


class HookProgram(Model):
    """The command that a hooks.d file starts. Source: runtime-spec, config.md "POSIX-platform Hooks"."""

    path: str
    args: list[str] | None = None
    env: list[str] | None = None
    timeout: int | None = None


class HookWhen(Model):
    """The conditions of a hooks.d file, all of which a container must meet; `hooksd` evaluates them."""

    always: bool | None = None
    annotations: dict[str, str] | None = None
    commands: list[str] | None = None
    has_bind_mounts: bool | None = Field(None, alias="hasBindMounts")


class HookFile(Model):
    """A file of hooks.d. Source: oci-hooks(5), "1.0.0 Hook Schema"."""

    version: Literal["1.0.0"]
    hook: HookProgram
    when: HookWhen | None = None
    stages: list[str]
