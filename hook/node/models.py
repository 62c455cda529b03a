# SPDX-License-Identifier: Apache-2.0
"""Models of what only the commands read and write: their records below /run,
and the files of hooks.d.

No hook loads this. They are pydantic models as those in `hook/models.py`, which says how they are
used. In the .pyz `models_compiled.py` takes the place of this module.
"""

# ruff: noqa: RUF012  pydantic copies a default

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hook.models import Counters, Id, Model, Natural, Pid, Seconds, Version
from hook.validation import MOST_NATURAL


class ReconcileRecord(Model):
    """The file `reconcile.json` has the work of reconcile and watch since boot."""

    version: Version = 1
    # Unix times (s) of the last start, and of the end of the last complete run
    started_at: Seconds | None = None
    ended_at: Seconds | None = None
    # of that run: its duration
    seconds: Seconds = 0.0
    # its failed actions, without those of containers that stay unmonitored and of
    # lines of history that wait
    failed: Natural = 0
    # the problems that it may not change
    left: Natural = 0
    # the keys that could not end for the live tasks in their groups:
    # a run names those that the last one has not
    held: list[Id] = []
    # the threads that are still outside their group, by container,
    # for at most a hundred containers; and of all
    outside: dict[str, Natural] = {}
    outside_total: Natural = 0
    # the threads that stay in another ctrl_group or another tool's group, by its path,
    # for at most a hundred groups
    elsewhere: dict[str, Natural] = {}
    # when its last look at the node began (CLOCK_BOOTTIME, s)
    looked_at: Seconds = 0.0
    # the counters of memory traffic then, if the kernel may take them away, by group
    counted: dict[str, dict[str, str]] = {}
    # the number of keys, cgroups and processes that it could not read
    unread: Natural = 0
    # since boot, by verb: the actions that were done, and those that failed
    actions: dict[str, Natural] = {}
    failures: dict[str, Natural] = {}
    # as in KeyState, of all keys
    late_cpu: Seconds = 0.0


class ViewRecord(Model):
    """The file `view.json`: that `view` keeps the consumer's view."""

    version: Version = 1
    # Unix time (s) of this record
    alive_at: Seconds = 0.0


class WatchRecord(Model):
    """The file `watch.json` has the work of the running `watch` since its start.

    SIGTERM makes it remove this file.
    """

    version: Version = 1
    # Unix times (s) of its start, and of this record
    started_at: Seconds = 0.0
    alive_at: Seconds = 0.0
    # threads that it moved into their groups
    moved: Natural = 0
    # containers that it followed to another ctrl_group
    followed: Natural = 0
    # processes that it could not move
    failed: Natural = 0
    # how often the kernel dropped exec events
    overflows: Natural = 0


class UnhookedContainer(Model):
    """A container that was never hooked. Names that are unknown are None."""

    namespace: str | None = None
    pod: str | None = None
    # its name in the pod
    name: str | None = None
    # of the pod, in the chart, which knows no names
    uid: str | None = None


class Unhooked(Model):
    """The file `unhooked.json` has the running containers that no hook was called for,
    as reconcile last saw them.
    """

    version: Version = 1
    # when it looked
    since: str
    # by ID
    containers: dict[Id, UnhookedContainer]
    # for how many containers no runtime could be asked
    unchecked: Natural
    # a hash of the rules of that time
    rules: str
    # the containers that no hook was meant for, by these rules
    others: list[str]
    # the containers that hold a pod's sandbox
    sandboxes: list[str] = []
    # in the chart: when the last of `containers` started (Unix time, s),
    # unless a later one had the hook
    last_started_at: Seconds | None = None
    # in the chart: when the last container that had the hook started (CLOCK_BOOTTIME, s),
    # also if it has ended
    last_hooked: Seconds = 0.0


class JobContainer(Model):
    """A container, or a process of a job."""

    id: str = Field(description="its ID, or job-PID-STARTTIME")
    name: str | None = Field(None, description="null: unknown")


class Job(Model):
    """A line of the file of --history: what one run of a key used, written when it ended.

    build.py compile makes docs/history.schema.json of it.
    """

    version: Version = 1
    id: str = Field(description="the same if the same run of a node is written again")
    node: str = Field("", description="the host's name, or that of --node; empty: unknown")
    written: str = Field(
        "",
        description=(
            "in UTC; of the lines with one `node` and `id` the later one counts; empty: unknown"
        ),
        json_schema_extra={"pattern": r"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z)?$"},
    )
    kind: str = Field(description="pod, container, sandbox or job")
    key: Id = Field(description="the UID, the ID, or the name of the job")
    namespace: str | None = Field(None, description="null: none, or unknown")
    pod: str | None = Field(None, description="its name; null: none, or unknown")
    labels: dict[str, str] = Field({}, description="a job's --label")
    containers: list[JobContainer] = Field([], description="64 at most")
    more_containers: Natural = Field(0, description="how many `containers` lacks")
    begin: str | None = Field(
        None, description="in UTC; null: unknown", json_schema_extra={"format": "date-time"}
    )
    end: str = Field(description="in UTC", json_schema_extra={"format": "date-time"})
    seconds: Seconds | None = Field(None, description="from begin to end; null: unknown")
    runs: Natural = Field(
        1, description="how many runs it adds up; of a job, how many processes joined"
    )
    use: dict[str, Annotated[float, Field(ge=0, le=1e24)]] = Field(
        {}, description="what is known, in base units"
    )
    unknown: list[str] = Field([], description="events of which a part, or all, is unknown")
    late_cpu_seconds: Seconds = Field(
        0.0, description="CPU time of its tasks before they were in its group"
    )
    reason: str | None = Field(
        None, description="why it ran unmonitored, so that its use is unknown; null: it did not"
    )


class Sum(Model):
    """What all runs of a namespace, or with a value of a label, add up to."""

    # known use by event, as a counter's text in base units
    use: Counters = {}
    # the runs of which a part of the use is unknown
    unknown_runs: Natural = 0
    # Unix time (s) from which reconcile has known each event:
    # `show` lets its series begin at 0 then
    since: dict[str, Seconds] = {}


class SummedLine(Model):
    """A line that a later one with its ID may replace: what was added for it."""

    key: str
    # that of its failure's record, which its line outlives; None: it was monitored
    container: str | None = None
    namespace: str = ""
    # those that are added up
    labels: dict[str, str] = {}
    use: Counters = {}
    is_unknown: bool = False
    written: str | None = None
    # Unix time (s) at which it was added
    at: Seconds = 0.0


class SummedFile(Model):
    """A file of the history, and how far it has been added up.

    Its head names it; rotation changes all else.
    """

    # lines.hash_head
    head: str
    # behind the last line that has been added
    offset: Natural = 0
    # those of the file when it had been read to its end; 0: it has not
    inode: Natural = 0
    size: Natural = 0
    # the time of its last change, in nanoseconds
    changed: Natural = 0


class RunProcess(Model):
    """A process of a run: its pid and its start time, as in Member."""

    pid: Pid
    starttime: Natural


class SavedRun(Model):
    """A run as it was at the last checkpoint:
    the line that it would have had, had it ended then.
    """

    key: Id
    line: str
    # its processes of that boot
    processes: list[RunProcess] = []


class Sums(Model):
    """The file `sums.json` beside the history: what its lines add up to, by namespace,
    and by labels of jobs.
    """

    version: Version = 1
    # how far the files have been read, in the order in which they were last there
    files: list[SummedFile] = []
    # Whether that was to their ends. If not, reconcile goes on, and the sums are not shown yet.
    is_whole: bool = False
    # while that is so: the IDs that several lines have
    repeated: list[str] = []
    namespaces: dict[str, Sum] = {}
    # by the name of a label and by its value
    labels: dict[str, dict[str, Sum]] = {}
    # by ID, the lines whose runs are still on record, and those that were just added
    recent: dict[str, SummedLine] = {}
    # by ID, the runs that have no line yet, as they were at the last checkpoint
    saved: dict[str, SavedRun] = {}
    # its Unix time (s)
    saved_at: Seconds = 0.0
    # the boot that it is of
    boot: str = ""


class HookProgram(Model):
    """The command that a hooks.d file starts.

    Source: runtime-spec, config.md "POSIX-platform Hooks".
    """

    path: str
    args: list[str] | None = None
    env: list[str] | None = None
    timeout: Annotated[int, Field(ge=-(2**63), le=MOST_NATURAL)] | None = None


class HookWhen(Model):
    """The conditions of a hooks.d file: all hold for a container that gets
    its hook, or with `or` one.
    """

    always: bool | None = None
    any_of: bool | None = Field(None, alias="or")
    annotations: dict[str, str] | None = None
    commands: list[str] | None = None
    has_bind_mounts: bool | None = Field(None, alias="hasBindMounts")


class HookFile(Model):
    """A file of hooks.d. Source: oci-hooks(5), "1.0.0 Hook Schema"."""

    version: Literal["1.0.0"]
    hook: HookProgram
    when: HookWhen | None = None
    stages: list[str]
