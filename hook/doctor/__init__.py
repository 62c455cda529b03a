# SPDX-License-Identifier: Apache-2.0
"""`doctor`: checks a node and suggests fixes. No check changes anything, except --self-test."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hook.base.errors import HookError
from hook.doctor import installation, kernel, records, runtimes
from hook.doctor.finding import Finding, Site, failure

CHECKS: dict[str, Callable[[Site], Iterator[Finding]]] = {
    "root": kernel.check_root,
    "resctrl": kernel.check_resctrl,
    "RMIDs": kernel.check_rmids,
    "memory traffic": kernel.check_traffic,
    "/proc": kernel.check_processes,
    "program": installation.check_programs,
    "hooks.d": installation.check_hooks_directories,
    "runtimes": runtimes.check_runtimes,
    "annotations": runtimes.check_pod_annotations,
    "other resctrl tools": runtimes.check_other_tools,
    "records": records.check_records,
    "containers": records.check_containers,
    "unhooked": records.check_unhooked,
    "lost": records.check_lost_containers,
    "timer": installation.check_timer,
    "reconcile": records.check_reconcile,
    "watch": records.check_watch,
    "syslog": installation.check_syslog,
}
"""The checks in the order of the output, each with its subject."""


def run_check(name: str, site: Site) -> Iterator[Finding]:
    """Run a check. One that raises an error is a failure."""
    try:
        yield from CHECKS[name](site)
    except (HookError, OSError) as error:
        found, _, hint = str(error).partition("; hint: ")
        yield failure(name, f"cannot check: {found}", hint or "run doctor as root")
