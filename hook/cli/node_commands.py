"""The verbs of whoever looks after the node: from what was given on the command line to what is printed."""

from __future__ import annotations

import json
import os
import sys

from hook.base import jsontext
from hook.base.text import printable
from hook.doctor import doctor as diagnosis
from hook.host import hooksd, machine, runtime_config
from hook.host.paths import NAME, USR, Places, hooks_dir, prefix_of
from hook.host.pyz_file import Shipped
from hook.install import containerd_spec, file_steps, node_bytecode
from hook.install import install as installing
from hook.install import uninstall as uninstalling
from hook.install.file_steps import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

    from hook.base.models import Options

TARGETS = {**{target: (target,) for target in machine.TARGETS}, "both": machine.TARGETS}
"""What --for takes."""


def install(options: Options, given: argparse.Namespace) -> list[str] | dict[str, Any]:
    """What was installed. `given.words`: the options of the hook. Raises Refused, OSError."""
    places = _places(given, USR)
    targets = TARGETS[given.targets] if given.targets else tuple(machine.targets(places.top))
    if not targets:
        raise Refused(f"found no {', '.join(machine.RUNTIMES)} here; remedy: --for=kubernetes, podman or both")
    wanted = installing.Wanted(
        _shipped(), places, targets, tuple(given.words), options, given.adopt, given.python, given.force
    )
    outcomes, remarks = installing.run(wanted, dry_run=given.dry_run)
    if given.json:
        return {"dry_run": given.dry_run, "steps": file_steps.objects(outcomes), "remarks": remarks}
    return _printable([*file_steps.told(outcomes), *remarks])


def make_bytecode(given: argparse.Namespace) -> list[str] | dict[str, Any]:
    """What was done to give this file bytecode for the Python that starts it. Raises Refused, OSError."""
    program = os.path.realpath(_own_path())
    shipped = _shipped()
    python = installing.find_python(shipped.python)
    with file_steps.alone(os.path.dirname(program)):
        outcomes = file_steps.take(node_bytecode.steps(program, shipped, python), dry_run=False)
    if problems := [it.problem for it in outcomes if it.problem is not None]:
        raise Refused(*problems)
    return {"steps": file_steps.objects(outcomes)} if given.json else _printable(file_steps.told(outcomes))


def uninstall(options: Options, given: argparse.Namespace) -> list[str] | dict[str, Any]:
    """What was taken away, and what was not. Raises Refused, HookError, OSError."""
    places = _places(given, _own_prefix())
    done = uninstalling.run(places, options, given.runtime_root, force=given.force, dry_run=given.dry_run)
    if given.json:
        return {"dry_run": given.dry_run, "steps": file_steps.objects(done.outcomes), **uninstalling.objects(done)}
    return _printable([*file_steps.told(done.outcomes), *uninstalling.told(done)])


def doctor(options: Options, given: argparse.Namespace) -> tuple[list[str] | dict[str, Any], bool]:
    """What was found, and whether none of it is a failure. Raises Refused, OSError."""
    prefix = given.prefix or _own_prefix()
    if given.inject is not None:
        try:
            findings = list(diagnosis.inject(given.inject, given.hooks_dir))
        except (ValueError, TypeError, AttributeError) as error:  # whatever stands in there
            raise Refused(f"{given.inject} cannot be understood: {error}; remedy: a state, or a config.json") from None
    elif given.self_test:
        findings = list(diagnosis.try_group(options.resctrl_root))
    else:
        places = Places(prefix, hooks_dir(prefix))
        usual = dict.fromkeys([*hooksd.READERS, *runtime_config.of_crio(), *runtime_config.of_podman()])
        site = diagnosis.Site(places, options, tuple(given.hooks_dir or usual))
        findings = list(diagnosis.examine(site))
    is_well = all(it.level != diagnosis.FAILURE for it in findings)
    if given.json:
        return {"well": is_well, "findings": diagnosis.objects(findings)}, is_well
    return _printable(diagnosis.told(findings)), is_well


def _printable(lines: list[str]) -> list[str]:
    """Names of files, and what files hold, are anybody's words."""
    return [printable(line) for line in lines]


def base_runtime_spec(options: Options, given: argparse.Namespace) -> dict[str, Any]:
    """The specification on stdin with the hook in it, as install would have it called. Raises Refused."""
    places = Places(given.prefix or _own_prefix())
    wanted = installing.Wanted(_shipped(), places, (machine.KUBERNETES,), tuple(given.words), options)
    hook = json.loads(installing.hook_file(wanted, machine.KUBERNETES))["hook"]
    try:
        return containerd_spec.with_hook(jsontext.loads(sys.stdin.read()), hook)
    except ValueError as error:
        raise Refused(f"{error}; remedy: ctr oci spec | {NAME} base-runtime-spec") from None


def _shipped() -> Shipped:
    """What runs here. Raises Refused."""
    try:
        return Shipped(_own_path())
    except ValueError as error:
        raise Refused(f"{error}; remedy: start the file that `python3 build.py` makes") from None


def _places(given: argparse.Namespace, default: str) -> Places:
    prefix = given.prefix or default
    return Places(prefix, given.hooks_dir or hooks_dir(prefix), given.destdir or "")


def _own_path() -> str:
    """The file that runs: see hook/start.py."""
    return sys.argv[1]


def _own_prefix() -> str:
    """Where that is installed; /usr if it is not."""
    found = prefix_of(os.path.realpath(_own_path()))
    return USR if found is None else found
