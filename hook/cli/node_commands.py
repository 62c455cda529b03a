# SPDX-License-Identifier: Apache-2.0
"""The commands that administer the node: install, uninstall, doctor, base-runtime-spec."""

from __future__ import annotations

import json
import os
import sys

from hook.base import jsontext
from hook.base.text import printable
from hook.cli.deadline import Ended
from hook.cli.output import format_plan
from hook.doctor import CHECKS, run_check
from hook.doctor.finding import FAILURE, Finding, Site, failure, format_findings, to_objects
from hook.doctor.kernel import run_self_test
from hook.install import install as installing
from hook.install import node_bytecode, steps
from hook.install import uninstall as uninstalling
from hook.install.steps import Refused, Taken
from hook.node import config, hooksd, place
from hook.node.place import NAME, USR, Places, PyzFile, choose_hooks_dir, find_prefix

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

    from hook.base.models import Options

TARGETS = {**{target: (target,) for target in place.TARGETS}, "both": place.TARGETS}
"""The values of --for."""


def install(options: Options, given: argparse.Namespace) -> list[str] | dict[str, Any]:
    """Install. `given.words`: the options of the hook. Raises Refused, OSError."""
    places = _choose_places(given, USR)
    targets = TARGETS[given.targets] if given.targets else tuple(place.find_targets(places.top))
    if not targets:
        raise Refused(f"found none of {', '.join(place.RUNTIMES)}; remedy: use --for=kubernetes, podman or both")
    wanted = installing.Wanted(
        _open_pyz(), places, targets, tuple(given.words), options, given.adopt, given.python, given.force, given.watch
    )
    taken, remarks = installing.install(wanted, dry_run=given.dry_run)
    if given.json:
        return {"dry_run": given.dry_run, "steps": steps.steps_to_json(taken), "remarks": remarks}
    return _escape([*_format_steps(taken, dry_run=given.dry_run), *remarks])


def _format_steps(taken: Taken, *, dry_run: bool) -> list[str]:
    lines = steps.format_steps(taken)
    return format_plan(lines) if dry_run else lines


def make_bytecode(given: argparse.Namespace) -> list[str] | dict[str, Any]:
    """Compile the program that runs, if its Python needs it; lists what was done. Raises Refused, OSError."""
    program = os.path.realpath(_find_own_path())
    shipped = _open_pyz()
    python = installing.find_python(shipped.python)
    with steps.lock_directory(os.path.dirname(program)):
        taken = steps.take_steps(node_bytecode.plan_bytecode(program, shipped, python), dry_run=False)
    if problems := [problem for _step, problem in taken if problem is not None]:
        raise Refused(*problems)
    return {"steps": steps.steps_to_json(taken)} if given.json else _escape(steps.format_steps(taken))


def uninstall(options: Options, given: argparse.Namespace) -> list[str] | dict[str, Any]:
    """Uninstall; lists what was removed and what was kept. Raises Refused, HookError, OSError."""
    places = _choose_places(given, _find_own_prefix())
    done = uninstalling.uninstall(places, options, given.runtime_root, force=given.force, dry_run=given.dry_run)
    if given.json:
        shown = uninstalling.removal_to_json(done)
        return {"dry_run": given.dry_run, "steps": steps.steps_to_json(done.taken), **shown}
    return _escape([*_format_steps(done.taken, dry_run=given.dry_run), *uninstalling.format_removal(done)])


def doctor(options: Options, given: argparse.Namespace) -> tuple[list[str] | dict[str, Any], bool]:
    """The findings, and whether none is a failure. Raises Refused, OSError."""
    prefix = given.prefix or _find_own_prefix()
    if given.self_test:
        findings = list(run_self_test(options.resctrl_root))
    else:
        places = Places(prefix, choose_hooks_dir(prefix))
        usual = dict.fromkeys([*hooksd.READERS, *config.read_crio_hooks_dirs(), *config.read_podman_hooks_dirs()])
        site = Site(places, options, tuple(given.hooks_dir or usual))
        findings = _examine(site)
    is_well = all(it.level != FAILURE for it in findings)
    if given.json:
        return {"well": is_well, "findings": to_objects(findings)}, is_well
    return _escape(format_findings(findings)), is_well


def _examine(site: Site) -> list[Finding]:
    """The findings of all checks. If doctor is ended: those until then, and a failure that names the check."""
    findings: list[Finding] = []
    for name in CHECKS:
        try:
            for finding in run_check(name, site):
                findings.append(finding)
        except Ended as error:
            remedy = "see why this takes so long; this check and those after it are not complete"
            return [*findings, failure(name, f"doctor ended {error}, during this check", remedy)]
    return findings


def _escape(lines: list[str]) -> list[str]:
    """Escape the lines: others choose the names and the content of files."""
    return [printable(line) for line in lines]


def base_runtime_spec(options: Options, given: argparse.Namespace) -> dict[str, Any]:
    """The specification on stdin with the hook that install would write. Raises Refused."""
    places = Places(given.prefix or _find_own_prefix())
    wanted = installing.Wanted(_open_pyz(), places, (place.KUBERNETES,), tuple(given.words), options)
    hook = json.loads(installing.make_hook_file(wanted, place.KUBERNETES))["hook"]
    try:
        return installing.add_hook(jsontext.loads(sys.stdin.read()), hook)
    except ValueError as error:
        raise Refused(f"{error}; remedy: use ctr oci spec | {NAME} base-runtime-spec") from None


def _open_pyz() -> PyzFile:
    """The running .pyz. Raises Refused."""
    try:
        return PyzFile(_find_own_path())
    except ValueError as error:
        raise Refused(f"{error}; remedy: run the file that `python3 build.py` makes") from None


def _choose_places(given: argparse.Namespace, default: str) -> Places:
    prefix = given.prefix or default
    return Places(prefix, given.hooks_dir or choose_hooks_dir(prefix), given.destdir or "")


def _find_own_path() -> str:
    """The path of the running file: the first line of the .pyz puts it there (packaging/pyz)."""
    return sys.argv[1]


def _find_own_prefix() -> str:
    """The prefix of the running file; /usr if it is not installed."""
    found = find_prefix(os.path.realpath(_find_own_path()))
    return USR if found is None else found
