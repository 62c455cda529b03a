# SPDX-License-Identifier: Apache-2.0
"""The pydantic models of everything that is parsed: input, configuration, options,
and our own records.

Run from the source tree, the program uses this module. The .pyz holds `models_compiled.py` under
this name: the same classes in plain Python, which `python3 build.py compile` makes from the core
schemas of these, and which tests prove equal. The compiler knows some of pydantic's schemas, and
refuses all others by name. Both forms offer the fields, `Model(**fields)`,
`model_validate(object)`, `model_dump()`, and raise a ValueError with `errors()[0]["loc"]`:
pydantic's ValidationError, or that of `invalid`. `words.is_invalid` knows both.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, AliasChoices, BaseModel, ConfigDict, Field

from hook import names
from hook.validation import MOST_NATURAL

__all__ = ["Model"]

Pid = Annotated[int, Field(ge=1, le=2**31 - 1)]
Natural = Annotated[int, Field(ge=0, le=MOST_NATURAL)]
Id = Annotated[str, AfterValidator(names.check_container_id)]  # of a container; a key is like one
Seconds = Annotated[float, Field(ge=0, le=1e12)]
Directory = Annotated[str, AfterValidator(names.check_directory)]
# Only the names are checked: which values are printable depends on the version of Python.
Labels = dict[Annotated[str, AfterValidator(names.check_label)], str]
Counters = dict[str, str]  # `<domain>/<event>` to the text that the kernel gave
Version = Annotated[int, Field(ge=1, le=1)]  # a newer one is not ours to read
Kind = Literal["pod", "container", "sandbox", "job"]


class Model(BaseModel):
    """The rules of all models: no conversion of types, immutable, unknown fields ignored."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")


class State(Model):
    """The OCI state of a container, which a runtime writes to a hook's stdin.

    Source: runtime-spec 1.0 to 1.3, runtime.md "State" and schema/state-schema.json. `status`
    is any text, since the specification allows runtimes values of their own. `pid` is absent
    (runc) or 0 (crun) at poststop.
    """

    oci_version: str = Field(alias="ociVersion")
    id: Id
    status: str
    pid: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    bundle: Annotated[str, AfterValidator(names.check_path)]
    annotations: dict[str, str] | None = None


class Annotations(Model):
    """The annotations that name a container's pod.

    `identity` says who sets each, and which ones to trust.
    """

    manager: str | None = Field(None, alias="io.container.manager")
    pod_uid: str | None = Field(None, alias="io.kubernetes.pod.uid")
    pod_namespace: str | None = Field(None, alias="io.kubernetes.pod.namespace")
    pod_name: str | None = Field(None, alias="io.kubernetes.pod.name")
    container_name: str | None = Field(None, alias="io.kubernetes.container.name")
    sandbox_id: str | None = Field(None, alias="io.kubernetes.cri-o.SandboxID")
    cri_sandbox_uid: str | None = Field(None, alias="io.kubernetes.cri.sandbox-uid")
    cri_sandbox_namespace: str | None = Field(None, alias="io.kubernetes.cri.sandbox-namespace")
    cri_sandbox_name: str | None = Field(None, alias="io.kubernetes.cri.sandbox-name")
    cri_container_name: str | None = Field(None, alias="io.kubernetes.cri.container-name")


class IntelRdt(Model):
    """`linux.intelRdt` of a bundle's config.json (runtime-spec, config-linux.md "IntelRdt")."""

    clos_id: str | None = Field(None, alias="closID")


class Linux(Model):
    """`linux` of a bundle's config.json, as far as it is used.
    processes.list_requested reads `cgroups_path`.
    """

    intel_rdt: IntelRdt | None = Field(None, alias="intelRdt")
    cgroups_path: str | None = Field(None, alias="cgroupsPath")


class Config(Model):
    """A bundle's config.json, as far as it is used: annotations,
    requested ctrl_group, requested cgroup.
    """

    linux: Linux | None = None
    annotations: dict[str, str] | None = None


class Options(Model):
    """The options of the hook; `--resctrl-root` is `resctrl_root`, and so on. Times are in seconds.

    Their help is in hook/cli/options.py.
    """

    resctrl_root: Directory = "/sys/fs/resctrl"
    run_dir: Directory = "/run/resctrl-mon-hook"
    group_prefix: Annotated[str, AfterValidator(names.check_group_prefix)] = "oci-"
    key: Literal["auto", "container", "sandbox"] = "auto"
    containers: Literal["all", "kubernetes", "podman"] = "all"
    namespace: list[str] = []
    annotation: dict[str, str] = {}
    monitor: Literal["all", "opt-in", "opt-out"] = "all"
    linger: Annotated[int, Field(ge=0, le=86400)] = 0
    snapshot_ttl: Annotated[int, Field(ge=0, le=604800)] = 300
    lock_timeout: Annotated[float, Field(ge=0, le=60)] = 1.0
    rmid_wait: Annotated[float, Field(ge=0, le=60)] = 1.5
    history: Annotated[str, AfterValidator(names.check_file)] = ""
    node: Annotated[str, AfterValidator(names.check_node)] = ""
    strict: bool = False


class Member(Model):
    """A container of a key."""

    pid: Pid
    # Clock ticks since boot (/proc/PID/stat field 22). With the pid this names one process.
    starttime: Natural
    # The path of its mon_group.
    group: Annotated[str, AfterValidator(names.check_mon_group)]
    # `<controllers>:<path>` as /proc/PID/cgroup has it, without controllers for cgroup v2.
    cgroup: str | None = None
    # The mon_group of another tool that the process was in before.
    taken_from: str | None = None
    # The container's name: in its pod, as Kubernetes has it, or Podman's.
    name: str | None = None


class MonGroup(Model):
    """A mon_group of a key, which has one in each ctrl_group that its containers are in.

    Use is computed in `counters`.

    `inode`, `mounted`, `begin`, `end` and `last` are about the directory that exists now.
    """

    path: Annotated[str, AfterValidator(names.check_mon_group)]
    ctrl_group: Annotated[str, AfterValidator(names.check_ctrl_group)]
    # The inode tells the directory from an earlier one of the same path and
    # mount (Resctrl.identify).
    inode: Natural | None = None
    # The change time of the mount's root, in nanoseconds,
    # which tells the mount from an earlier one.
    mounted: Natural | None = None
    # The counters before the first member joined; None if they are not read yet, or no snapshots
    # are kept. Of a level (`llc_occupancy`) no record has a value: it is `Unavailable`.
    begin: Counters | None = None
    # The counters after the last member left; None if the group has not ended.
    end: Counters | None = None
    # The sum of what earlier directories of this group used.
    before: Counters = {}
    # The known part of `before`, if another part is unknown.
    known: Counters = {}
    # The counters when the key began to linger,
    # which count as the end if another tool removes the group then.
    last: Counters | None = None


class Returned(Model):
    """How a key came back after its completion."""

    # When, by both clocks.
    at: str
    boottime: Seconds
    # What the key had used before.
    use: MonGroup
    # The late_cpu of the key then.
    late_cpu: Seconds = 0.0


class OwedLines(Model):
    """The lines of history that a key owes to one file."""

    file: Annotated[str, AfterValidator(names.check_file)]
    # The oldest first.
    lines: list[str]
    # The kernel's word and its errno.
    why: str


class Owed(Model):
    """The lines of history that a key owes, since their file could not be written.
    line.list_owed lists them.

    The fields but `others` are those of the oldest lines.
    """

    lines: list[str]
    why: str
    # In the record of an earlier version it is empty: it is the file of the key.
    file: Annotated[str, AfterValidator(names.check_file)] = ""
    # Those of later runs, which have other files.
    others: list[OwedLines] = []


class KeyState(Model):
    """`groups/<key>.json`: the state of a key.

    A key that lingers has mon_groups, but no members. A completed key has neither, and is kept for
    its snapshot (`groups`), and as long as it has `owed` lines of history. A run of a key goes from
    its first member to its last. Times of day are RFC 3339 in UTC, for people; the program computes
    with those of CLOCK_BOOTTIME, in seconds.
    """

    version: Version = 1
    key: Id
    kind: Kind
    # A pod of Podman's has no namespace; until reconcile has found its name,
    # that is the first 12 digits of its ID.
    pod_namespace: str | None = None
    pod_name: str | None = None
    # The name of a key that is one container, which stays when the member has left.
    name: str | None = None
    # The labels of its metrics, if the names on record have changed since
    # (life_turns.keep_metric_labels). `labels` in a record of an earlier version.
    metric_labels: dict[str, str] = Field(  # type: ignore[pydantic-alias]
        {}, validation_alias=AliasChoices("metric_labels", "labels")
    )
    # Members may be missing, so that only reconcile may end the key.
    recovering: bool = False
    created_at: str = ""
    created_boottime: Seconds | None = None
    completed_at: str | None = None
    completed_boottime: Seconds | None = None
    # The pod's cgroup, in the form of Member's; None if it is unknown.
    cgroup: str | None = None
    lingering_since: Seconds | None = None
    lingering_until: Seconds | None = None
    # The last member that left did so by its own poststop,
    # so that a task which outlived it does not keep the groups.
    stopped: bool = False
    # The CPU seconds that its tasks had used before reconcile or watch moved them into its groups.
    late_cpu: Seconds = 0.0
    # Another tool has moved a container of the key to its own group,
    # so that a part of its use is unknown.
    taken: bool = False
    # The file for its line in the history, also if a command without --history ends the key.
    history_file: Annotated[str, AfterValidator(names.check_file)] = ""
    owed: Owed | None = None
    # A job's --label, which the call that begins a run gives.
    job_labels: Labels = {}
    # How many runs the key has had since its creation, or its return from completion.
    runs: Natural = 1
    # The names of containers that left since then, by ID,
    # as far as there is room (life_end.MOST_LEFT).
    left: dict[Id, str | None] = {}
    # How many others left.
    left_more: Natural = 0
    returned: Returned | None = None
    groups: list[MonGroup] = []
    # By container ID, or by life_turns.name_displaced if another process got the ID.
    members: dict[Annotated[str, AfterValidator(names.check_member)], Member] = {}


class Index(Model):
    """`members/<container-id>.json`: the key of a container,
    for a poststop that comes without annotations (Podman).

    It is written before the key's record, and has what a record that is lost takes to rebuild.
    """

    version: Version = 1
    key: Id
    # The container's process, as in Member; a record of an earlier version has none.
    pid: Pid | None = None
    starttime: Natural | None = None
    # As in KeyState: a record that reconcile rebuilds has them from here.
    history_file: Annotated[str, AfterValidator(names.check_file)] = ""
    job_labels: Labels = {}


class Failure(Model):
    """`unmonitored/<container-id>.json`: why a container is not monitored.

    The container's fields are for reconcile, which tries again, and for people.
    """

    version: Version = 1
    container: str
    stage: str
    reason: str
    problem: str
    tried: str = ""
    kernel: str = ""
    hint: str = ""
    # The container is monitored, and the record says what is wrong though.
    monitored: bool = False
    # RFC 3339, UTC.
    time: str = ""
    # The same moment on CLOCK_BOOTTIME, in seconds:
    # a process with this pid that started later is another one.
    boottime: Seconds | None = None
    bundle: str | None = None
    pid: Pid | None = None
    starttime: Natural | None = None
    key: Id | None = None
    kind: Kind | None = None
    namespace: str | None = None
    pod: str | None = None
    # The container's name in its pod.
    name: str | None = None
    # The --history of its hook.
    history_file: Annotated[str, AfterValidator(names.check_file)] = ""
    # The --label of a job. `labels` in a record of an earlier version.
    job_labels: Labels = Field(  # type: ignore[pydantic-alias]
        {}, validation_alias=AliasChoices("job_labels", "labels")
    )
