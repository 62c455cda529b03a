"""Checks of the runtimes that start containers, and of other tools that use resctrl."""

from __future__ import annotations

import os

from hook.doctor.finding import FAILURE, OK, WARNING, Finding
from hook.doctor.site import names_hook
from hook.host import cdi, containerd, hooksd, injector, machine, programs, runtime_config, would_inject
from hook.host.machine import KUBERNETES, PODMAN
from hook.host.paths import NAME
from hook.stages.identity import OPT
from hook.stages.options import parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hook.doctor.site import Site
    from hook.host.containerd import Found

# Programs that make or remove mon_groups as well, by the names of their processes, and what follows from that.
_PEERS = {
    "nri-resctrl-mon": "it makes groups for the same pods, and whoever comes last has them: stop one of the two",
    "resctrl-mon": "it makes groups for the same pods, and whoever comes last has them: stop one of the two",
    "kepler": "let it read ours (passive mode, base-path={run_dir}): in active mode it makes groups for the same pods",
    "pqos": "its reset (-R) removes every group on the machine; reconcile makes ours anew",
    "cadvisor": "with resctrl enabled it makes groups of its own, which take RMIDs",
}
_CONTAINERDS = frozenset(("containerd", "k3s", "rke2"))


def check_runtimes(site: Site) -> Iterator[Finding]:
    found = [name for name in machine.RUNTIMES if programs.find(name)]
    if not found:
        yield Finding(
            WARNING, "runtimes", f"found no {', '.join(machine.RUNTIMES)}", "Docker has no hooks for its users"
        )
        return
    yield Finding(OK, "runtimes", ", ".join(found))
    directories = {os.path.dirname(entry.path) for entry in site.ours}
    if "crio" in found:
        yield from _check_hooks_dirs("CRI-O", runtime_config.of_crio(), directories)
        yield from _check_rdt_config()
    if "podman" in found and any(PODMAN in entry.name for entry in site.ours):
        yield from _check_hooks_dirs("Podman", runtime_config.of_podman(), directories)
    if "crio" not in found and not _CONTAINERDS.isdisjoint(found):
        yield from _check_containerd(site)


def _check_hooks_dirs(who: str, reads: list[str], directories: set[str]) -> Iterator[Finding]:
    if not directories or directories & set(reads):
        yield Finding(OK, who, f"reads {', '.join(reads)}")
    else:
        remedy = f"install --hooks-dir={reads[-1] if reads else hooksd.SYSTEM}, or name ours in its hooks_dir"
        yield Finding(FAILURE, who, f"reads {', '.join(reads) or 'no hooks.d'}: none of our files is there", remedy)


def _check_rdt_config() -> Iterator[Finding]:
    path = runtime_config.rdt_config_file()
    if path is not None:
        found = (
            f"rdt_config_file is {path}: each start of CRI-O removes ctrl_groups that are not in it, and empty groups"
        )
        yield Finding(WARNING, "CRI-O", found, "what it removes of ours, reconcile makes anew: keep the timer running")


def _check_containerd(site: Site) -> Iterator[Finding]:
    """It reads no hooks.d itself: the NRI hook-injector does, or its own base_runtime_spec names the hook."""
    found, injectors = containerd.look(), injector.running()
    specs = [it for it in found.specs if names_hook(site, it.place)]
    in_force = [it.path for it in specs if it.in_force]
    yield from check_injectors(injectors)
    yield from _check_rejections(found, bool(injectors or not in_force))
    if injectors and in_force:
        remedy = "each hook is called twice, which does no harm and takes its time: one of the two is enough"
        yield Finding(WARNING, "containerd", f"the NRI hook-injector runs, and {in_force[0]} names the hook", remedy)
    elif injectors or in_force:
        yield Finding(OK, "containerd", "the NRI hook-injector runs" if injectors else f"{in_force[0]} names the hook")
    elif specs:
        remedy = "version 3 has the runtimes in the table plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes"
        found_in = f"{specs[0].path} names the hook, but its base_runtime_spec is in a table that containerd ignores"
        yield Finding(FAILURE, "containerd", found_in, remedy)
    elif any(KUBERNETES in entry.name for entry in site.ours):
        remedy = f"run the hook-injector of containerd/nri, or see {NAME} base-runtime-spec"
        yield Finding(
            WARNING, "containerd", "no NRI hook-injector runs, and no base_runtime_spec names the hook", remedy
        )


def check_injectors(pids: Iterable[int]) -> Iterator[Finding]:
    """Those that give no container the hook."""
    for pid in pids:
        subject = f"hook-injector (pid {pid})"
        try:
            reason = injector.why_blind(pid)
        except OSError as error:
            yield Finding(WARNING, subject, f"cannot read its root directory: {error.strerror}", "run it as root")
            continue
        if reason is not None:
            remedy = "mount that directory of the host into its pod at the same path (see the README, containerd)"
            yield Finding(FAILURE, subject, f"{reason}: it gives no container the hook", remedy)


def _check_rejections(found: Found, is_injected: bool) -> Iterator[Finding]:
    """What keeps containerd from taking hooks of the injector, and what could not be found out."""
    if is_injected:
        for path in found.rejecting:
            text = f"{path}: NRI's default_validator has reject_oci_hook_adjustment = true"
            remedy = (
                "containers that the hook-injector gives the hook do not start: set it to false, or remove the hook"
            )
            yield Finding(FAILURE, "containerd", text, remedy)
    for line in found.unclear:
        yield Finding(
            WARNING, "containerd", line, "whether it names the hook is not known; uninstall keeps the program"
        )


def check_pod_annotations(site: Site) -> Iterator[Finding]:
    """Options that go by annotations of pods, which containerd keeps to itself unless it is told to pass them on."""
    if programs.find("crio") or not any(map(programs.find, _CONTAINERDS)):
        return
    calls: list[Sequence[str]] = [it.file.hook.args or [] for it in site.ours if it.file and KUBERNETES in it.name]
    configuration = containerd.look()
    specs = [spec.place for spec in configuration.specs]
    calls += [it for path in specs if names_hook(site, path) for it in would_inject.calls(path)]
    needed = set()
    for arguments in calls:
        options, _ = parse(list(arguments)[2:])
        needed |= {key for key in options.annotation if not key.startswith("io.kubernetes.cri.")}
        needed |= {OPT, f"{OPT}/CONTAINER"} if options.monitor != "all" else set()
    lacking = sorted(key for key in needed if not configuration.passes_on(key))
    if lacking:
        found = f"it does not pass on {', '.join(lacking)}: --monitor and --annotation of the hook see nothing of them"
        remedy = f'pod_annotations = ["{OPT}", "{OPT}/*"] in its table of the runtime (config.toml), and restart it'
        yield Finding(WARNING, "containerd", found, remedy)


def check_other_tools(site: Site) -> Iterator[Finding]:
    running = {os.path.basename(word) for command in machine.commands() for word in command[:2]}
    for name, remedy in _PEERS.items():
        if any(it == name or it.endswith("-" + name) for it in running):
            yield Finding(WARNING, "beside us", f"{name} runs", remedy.format(run_dir=site.options.run_dir))


def check_cdi_devices(_site: Site) -> Iterator[Finding]:
    """CDI devices whose hooks run after ours."""
    for path, program in cdi.hooks():
        found = f"{path} has {program} called at createRuntime; CRI-O runs that after our hook"
        remedy = (
            "if it writes the container into a ctrl_group (k8s-dra-driver-resctrl does), that takes it out of its "
            "mon_group until the next reconcile: keep the timer running"
        )
        yield Finding(WARNING, "CDI", found, remedy)
