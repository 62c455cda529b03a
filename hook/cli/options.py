# SPDX-License-Identifier: Apache-2.0
"""The arguments of each command, as pydantic models: parsing, --help and completion follow from them.

A model's docstring is the command's purpose and an example, for --help. A field whose alias is in capitals is an
argument without `--`. After a change run `python3 build.py compile`: in the .pyz `options_compiled.py` takes the place
of this module.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from hook import names
from hook.cli.options_compiled import ARGUMENTS
from hook.models import Model
from hook.node import paths

__all__ = ["ARGUMENTS"]

Count = Annotated[int, Field(ge=1, le=999_999_999)]
Directory = Annotated[str, AfterValidator(names.check_directory)]
Label = Annotated[str, AfterValidator(names.check_label)]
Labels = dict[Label, Annotated[str, AfterValidator(names.check_label_value)]]


def _field(value: str, meaning: str, default: Any = None, **more: Any) -> Any:  # noqa: ANN401  as of Field
    """Make a field. The placeholder `value` is empty for a flag, and for a choice, whose words the help shows."""
    return Field(default, title=value or "-", description=meaning, **more)


_ADOPT = _field("", "also monitor containers that run without ever having been hooked", False)
_DESTDIR = _field("DIR", "put all files below this directory, for example to make an image (default: /)")
_DRY_RUN = _field("", "print what would be done, and change nothing", False)
_FORCE = _field("", "also where files belong to a package, to the chart or to a MachineConfig", False)
_HOOKS_DIR = _field("DIR", "the directory for hooks.d files (default: by --prefix)")
_JOB = _field("NAME", "the job's name")
_LABEL = _field("NAME=VALUE", "a label of the job, for the bill: eight at most (repeatable)", {})
_NAMESPACE = _field("NS", "only pods of this namespace (repeatable)", [])
_OUTPUT = _field("FORM", "wide: all columns and counters, nothing cut; json: as --json. Short: -o")
_PREFIX = _field("DIR", "where the program is, or is to be: below libexec and bin there (default: /usr)")
_RUNTIME_ROOT = _field("DIR", "look for containers in this state directory of an OCI runtime, too (repeatable)", [])


class List(Model):
    """Show keys, containers that are not monitored, RMIDs.

    list --namespace=shop --sort=traffic --limit=20: show the 20 pods of shop with the most memory traffic
    """

    what: Literal["unmonitored"] | None = _field("", "only containers that are not monitored, and why", alias="WHAT")
    namespace: list[str] = _NAMESPACE
    state: list[Literal["live", "taken", "missing", "recovering", "lingering", "completed"]] = _field(
        "STATE", "only keys in this state: live, taken, missing, recovering, lingering, completed (repeatable)", []
    )
    sort: Literal["energy", "traffic", "age", "name"] = _field("BY", "most energy or traffic, age, or name", "energy")
    limit: Count | None = _field("N", "no more keys than this many")
    output: Literal["wide", "json"] | None = _OUTPUT


class Show(Model):
    """Show one key: its use, containers, life.

    show shop/web-7c9f: show the pod of shop whose name begins so
    """

    key: str = _field("KEY", "a key, `namespace/pod`, pod, container's ID or name, or how one begins", ..., alias="KEY")
    output: Literal["json"] | None = _field("FORM", "json: as --json. Short: -o")


class Top(Model):
    """Show current usage, a table each interval.

    top --interval=10 --count=6: print the usage for a minute
    """

    interval: float = _field("SECONDS", "time between two tables", 2.0, ge=0.001, le=86400)
    count: Count | None = _field("N", "end after this many tables (default: on a terminal none, else 1)")
    namespace: list[str] = _NAMESPACE
    sort: Literal["energy", "traffic", "cache", "name"] = _field("BY", "most energy, traffic, cache, or name", "energy")
    output: Literal["wide", "json"] | None = _OUTPUT


class History(Model):
    """Show what containers used that have ended.

    history --since=yesterday --sort=energy --limit=5: show the 5 jobs since yesterday that used the most energy
    """

    name: list[str] = _field("NAME", "only this key, `namespace/pod`, pod, container or ID", [], alias="NAME")
    since: str | None = _field(
        "TIME",
        "only what ended since: 90s, 15m, 12h, 7d or 2w ago, today, yesterday, `last night` (18:00 to 8:00), a date "
        "(2026-11-24) or a time (2026-11-24T18:30), in local time or with a zone",
    )
    until: str | None = _field("TIME", "only what ended before, or by the end of that day or night")
    label: Labels = _field("NAME=VALUE", "only jobs with all these labels (repeatable)", {})
    by: Label | None = _field("NAME", "sums by name, pod, namespace, day of the end, or by a label of this name")
    sort: Literal["energy", "traffic", "start"] | None = _field(
        "BY", "most energy or traffic, or latest start (default: as they ended; sums by name)"
    )
    limit: Count | None = _field("N", "no more rows than this many; without --sort the last ones")
    history: str = _field("FILE", "the file that hooks write, with its rotated ones", paths.HISTORY)
    csv: bool = _field("", "print CSV, for a spreadsheet", False)


class Metrics(Model):
    """Print, write or serve Prometheus metrics.

    metrics --textfile=/var/lib/prometheus/node-exporter/resctrl.prom: write a file for node_exporter
    """

    textfile: str | None = _field("PATH", "replace this file, for the textfile collector of node_exporter")
    listen: str | None = _field("[ADDRESS:]PORT", "answer GET /metrics there until stopped (default: 127.0.0.1)")
    created: bool = _field("", "with --listen, in OpenMetrics: also when each counter of a key was 0", False)


class Doctor(Model):
    """Check this node and suggest fixes.

    doctor --report: print what this machine shows, for an issue
    """

    prefix: Directory | None = _PREFIX
    hooks_dir: list[Directory] = _field("DIR", "check these hooks.d files (repeatable; default: all that are read)", [])
    report: bool = _field("", "print what the kernel shows of this machine, without names of containers", False)


class Reconcile(Model):
    """Repair what hooks cannot (in the host's namespaces).

    reconcile --linger=600 --adopt --dry-run: print what it would do, also for containers without the hook
    """

    dry_run: bool = _DRY_RUN
    adopt: bool = _ADOPT
    runtime_root: list[Directory] = _RUNTIME_ROOT
    live: str | None = _field("FILE", "read the live keys from FILE, a line each (- is stdin), not from processes")


class RunWatch(Model):
    """Move in at once what exec adds to containers.

    watch --linger=600: listen to execs until it is stopped
    """


class RunView(Model):
    """Keep what each key used in files like resctrl's.

    view --once: make these files, and end
    """

    once: bool = _field("", "make them once: nothing keeps them up to date then", False)


class Run(Model):
    """Run a command in a group of its own (jobs).

    run --key=nightly -- make -j8 all: let make and all that it starts be the job nightly
    """

    key: str | None = _field("NAME", "the job's name (default: job-PID-STARTTIME of the command)")
    label: Labels = _LABEL
    wait: bool = _field("", "stay as its parent, pass signals on, and release the job when it ends", False)
    strict: bool = _field("", "do not run the command if it cannot join the job", False)
    command: list[str] = _field("COMMAND", "the command and its arguments: all that is after --", [], alias="COMMAND")


class Assign(Model):
    """Put processes that run into a job's group.

    assign --key=nightly 4711: put process 4711, with its threads and children, into the job nightly
    """

    key: str | None = _JOB
    label: Labels = _LABEL
    force: bool = _field("", "also if the process is that of the service which makes this call", False)
    pid: list[str] = _field("PID", "a process, which is in no other group yet", [], alias="PID")


class Release(Model):
    """End a job: its group goes, processes stay.

    release --key=nightly: end the job nightly, and keep what it used
    """

    key: str | None = _JOB
    pid: list[str] = _field("PID", "take only this process out; the last one ends the job", [], alias="PID")


class Install(Model):
    """Install this file, hooks.d files and a timer.

    install --for=podman --key=sandbox --dry-run: print what it would install for Podman's pods
    """

    targets: Literal["kubernetes", "podman", "both", "jobs", "same"] | None = _field(
        "", "for which runtimes, for jobs alone, or as it is (default: the runtimes found here)", alias="for"
    )
    prefix: Directory | None = _PREFIX
    hooks_dir: Directory | None = _HOOKS_DIR
    destdir: Directory | None = _DESTDIR
    adopt: bool = _ADOPT
    watch: bool = _field("", "also start the watch service", False)
    view: bool = _field("", "also start the view service", False)
    force: bool = _FORCE
    dry_run: bool = _DRY_RUN


class Uninstall(Model):
    """Remove hooks.d files, end all keys, and remove the rest.

    uninstall --dry-run: print what it would remove
    """

    prefix: Directory | None = _PREFIX
    hooks_dir: Directory | None = _HOOKS_DIR
    destdir: Directory | None = _DESTDIR
    force: bool = _FORCE
    dry_run: bool = _DRY_RUN


class BaseRuntimeSpec(Model):
    """Add the hook to the output of `ctr oci spec`.

    base-runtime-spec --linger=600 <spec.json >/etc/containerd/spec.json: make the base_runtime_spec of containerd
    """

    prefix: Directory | None = _PREFIX


class Completion(Model):
    """Print a completion script for bash, zsh or fish.

    completion bash: let bash complete command lines
    """

    shell: Literal["bash", "zsh", "fish"] = _field("SHELL", "bash, zsh or fish", ..., alias="SHELL")
