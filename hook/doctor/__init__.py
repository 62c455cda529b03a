# SPDX-License-Identifier: Apache-2.0
"""What checks a node and suggests fixes: all checks, in order. They change nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hook.base.errors import HookError
from hook.doctor.finding import Finding, Site, failure
from hook.doctor.installation import check_hooks_directories, check_programs, check_syslog, check_timer
from hook.doctor.kernel import check_processes, check_resctrl, check_rmids, check_root, check_traffic
from hook.doctor.records import (
    check_containers,
    check_lost_containers,
    check_reconcile,
    check_records,
    check_unhooked,
    check_watch,
)
from hook.doctor.runtimes import check_other_tools, check_pod_annotations, check_runtimes

CHECKS: dict[str, Callable[[Site], Iterator[Finding]]] = {
    "root": check_root,
    "resctrl": check_resctrl,
    "RMIDs": check_rmids,
    "memory traffic": check_traffic,
    "/proc": check_processes,
    "program": check_programs,
    "hooks.d": check_hooks_directories,
    "runtimes": check_runtimes,
    "annotations": check_pod_annotations,
    "other resctrl tools": check_other_tools,
    "records": check_records,
    "containers": check_containers,
    "unhooked": check_unhooked,
    "lost": check_lost_containers,
    "timer": check_timer,
    "reconcile": check_reconcile,
    "watch": check_watch,
    "syslog": check_syslog,
}
"""The checks in the order of the output, each with its subject."""


def run_check(name: str, site: Site) -> Iterator[Finding]:
    """Run a check. One that raises an error is a failure."""
    try:
        yield from CHECKS[name](site)
    except (HookError, OSError) as error:
        found, _, hint = str(error).partition("; hint: ")
        yield failure(name, f"cannot check: {found}", hint or "run doctor as root")
