# SPDX-License-Identifier: Apache-2.0
"""Checks of the runtimes that start containers, and of other tools that use resctrl."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from hook.doctor import Finding, Site, failure, ok, warning
from hook.node import config, host, place, programs
from hook.node.config import Engine
from hook.node.hooksd import find_own_hooks, parse_options, read_hooks
from hook.node.place import KUBERNETES, NAME, PODMAN
from hook.stages.identity import OPT

# Other programs that make or remove mon_groups: the name of the process, and its effect and remedy.
_OTHER_TOOLS = {
    "nri-resctrl-mon": "it makes groups for the same pods, and a process is in the last one only: stop one of the two",
    "resctrl-mon": "it makes groups for the same pods, and a process is in the last one only: stop one of the two",
    "kepler": "use passive mode with base-path={run_dir}: in active mode it makes groups for the same pods",
    "pqos": "its reset (-R) removes every group on the machine; reconcile then makes ours again",
    "cadvisor": "with resctrl enabled it makes its own groups, which take RMIDs",
}
_CONTAINERDS = frozenset(("containerd", "k3s", "rke2"))


def check_runtimes(site: Site) -> Iterator[Finding]:
    found = [name for name in place.RUNTIMES if programs.find_program(name)]
    if not found:
        remedy = "install CRI-O, Podman or containerd: Docker does not support OCI hooks"
        yield warning("runtimes", f"found none of {', '.join(place.RUNTIMES)}", remedy)
        return
    yield ok("runtimes", ", ".join(found))
    if "crio" in found:
        yield _check_hooks_dirs(site, config.CRIO)
        if (path := config.read_rdt_config_file()) is not None:
            found_in = f"rdt_config_file is {path}: each start of CRI-O removes empty groups"
            remedy = "keep the timer running: reconcile makes the removed groups again"
            yield warning("CRI-O", f"{found_in}, and ctrl_groups missing in that file", remedy)
    if "podman" in found and any(PODMAN in entry.name for entry in site.ours):
        yield _check_hooks_dirs(site, config.PODMAN)
    if "crio" not in found and not _CONTAINERDS.isdisjoint(found):
        yield from _check_containerd(site)


def _check_hooks_dirs(site: Site, engine: Engine) -> Finding:
    reads = engine.read_hooks_dirs()
    directories = {os.path.dirname(entry.path) for entry in site.ours}
    if not directories or directories & {*reads}:
        return ok(engine.name, f"reads {', '.join(reads)}")
    found = f"reads {', '.join(reads) or 'no hooks.d'}, which has none of our files"
    return failure(engine.name, found, f"append {min(directories)} to its hooks_dir")


def _check_containerd(site: Site) -> Iterator[Finding]:
    """containerd does not read hooks.d: the NRI hook-injector does, or a base_runtime_spec names the hook."""
    found, injectors = site.containerd, host.find_injectors()
    specs = [it for it in found.specs if site.is_called_by(it.path, it.files)]
    in_force = [it.path for it in specs if it.in_force]
    yield from report_claims()
    # By these settings containerd rejects the injector's hooks.
    for path in found.rejecting if injectors or not in_force else ():
        text = f"{path}: NRI's default_validator has reject_oci_hook_adjustment = true"
        remedy = "containers that get the hook from the hook-injector do not start"
        yield failure("containerd", text, f"set it to false, or remove the hook: {remedy}")
    for line in found.unclear:
        remedy = "fix this file: doctor cannot see whether it names the hook, and uninstall keeps the program"
        yield warning("containerd", line, remedy)
    if injectors and in_force:
        remedy = "remove one of the two: each hook runs twice, which is harmless but takes time"
        yield warning("containerd", f"the NRI hook-injector runs, and {in_force[0]} names the hook", remedy)
    elif injectors or in_force:
        yield ok("containerd", "the NRI hook-injector runs" if injectors else f"{in_force[0]} names the hook")
    elif specs:
        remedy = "with version = 3, use the table plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes"
        found_in = f"{specs[0].path} names the hook, but its base_runtime_spec is in a table that containerd ignores"
        yield failure("containerd", found_in, remedy)
    elif any(KUBERNETES in entry.name for entry in site.ours):
        found_none = "no NRI hook-injector runs on the host, and no base_runtime_spec names the hook"
        remedy = f"run the hook-injector of containerd/nri, or use {NAME} base-runtime-spec"
        yield warning("containerd", found_none, f"{remedy}; ask Kubernetes for one in a pod")


def report_claims() -> Iterator[Finding]:
    """Report processes in pods with an injector's name: any pod can have them, so they change no other finding."""
    for pid in host.find_injector_claims()[:1]:
        found = f"unproven: process {pid} in a pod has the name of a hook-injector, as any tenant's process can"
        yield ok("containerd", f"{found}; `list` counts the containers that never got the hook")


def check_pod_annotations(site: Site) -> Iterator[Finding]:
    """Report options that need pod annotations which containerd does not pass on."""
    if programs.find_program("crio") or not any(map(programs.find_program, _CONTAINERDS)):
        return
    calls = [it.own for it in site.ours if it.own is not None and KUBERNETES in it.name]
    configuration = site.containerd
    named = [it for it in configuration.specs if site.is_called_by(it.path, it.files)]
    calls += [it for spec in named for it in find_own_hooks(read_hooks(spec.path, spec.files))]
    needed = set()
    for options, _complaints in map(parse_options, calls):
        needed |= {key for key in options.annotation if not key.startswith("io.kubernetes.cri.")}
        needed |= {OPT, f"{OPT}/CONTAINER"} if options.monitor != "all" else set()
    lacking = sorted(key for key in needed if not configuration.passes_on(key))
    if lacking:
        found = f"does not pass on {', '.join(lacking)}: the hook's --monitor and --annotation never see them"
        remedy = f'set pod_annotations = ["{OPT}", "{OPT}/*"] in the runtime\'s table (config.toml)'
        yield warning("containerd", found, f"{remedy}, and restart containerd")


def check_other_tools(site: Site) -> Iterator[Finding]:
    """Report other resctrl tools that run on the host itself. `check_rmids` reports the groups of all tools."""
    running = host.find_processes(lambda words: _find_tool(words) is not None)
    for name in sorted({_find_tool(words) or "" for words in running.words.values()}):
        remedy = _OTHER_TOOLS[name].format(run_dir=site.options.run_dir)
        yield warning("other resctrl tools", f"{name} runs", remedy)


def _find_tool(words: Sequence[str]) -> str | None:
    """The tool that a command line starts: its program, or what an interpreter runs."""
    started = [os.path.basename(word) for word in words[:2]]
    return next((it for it in _OTHER_TOOLS for name in started if name == it or name.endswith("-" + it)), None)
