# SPDX-License-Identifier: Apache-2.0
"""`doctor --inject`: does this container get the hook, and if not, why not?"""

from __future__ import annotations

from hook.doctor.finding import FAILURE, OK, WARNING, Finding
from hook.doctor.runtimes import report_claims
from hook.host import injector, would_inject
from hook.host.paths import PROGRAM

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hook.host.would_inject import Container, Verdict


def check_container(path: str, directories: Iterable[str] = ()) -> Iterator[Finding]:
    """Whether hooks.d gives a container the hook, and what the hook then does. Raises OSError, ValueError.

    A container whose config.json already has the hook gets it in any case.
    """
    container = would_inject.read_container(path, tuple(directories))
    yield Finding(OK, "read by", f"{container.reader}, from {', '.join(container.directories)}")
    if container.remark:
        remedy = 'if a file matches other annotations, give those of the kubelet as {"annotations": {...}}'
        yield Finding(WARNING, "read by", container.remark, remedy)
    for arguments in container.given:
        yield Finding(OK, "config.json", f"has the hook: {would_inject.describe_effect(container, arguments)}")
    verdicts = would_inject.match_files(container)
    for verdict in verdicts:
        yield _describe_verdict(container, verdict)
    gets = container.given or any(it.why_not is None and it.entry.calls(PROGRAM) for it in verdicts)
    if not gets:
        yield Finding(FAILURE, "the hook", "this container does not get it", container.remedy)
    elif container.reader == would_inject.INJECTOR and not container.given:
        yield from _check_injector()


def _describe_verdict(container: Container, verdict: Verdict) -> Finding:
    """Whether a hooks.d file applies to a container."""
    entry, why_not = verdict.entry, verdict.why_not
    if entry.problem is not None:
        return Finding(
            FAILURE,
            entry.path,
            f"invalid: readers of hooks.d reject it, and then start no container: {entry.problem}",
            "fix or remove it",
        )
    if why_not is not None:
        return Finding(OK, entry.path, f"no: {why_not}")
    if entry.file is None or not entry.calls(PROGRAM):
        return Finding(OK, entry.path, "yes, but it is of another program")
    effect = would_inject.describe_effect(container, entry.file.hook.args or [])
    if not verdict.unless:
        return Finding(OK, entry.path, f"yes: {effect}")
    remedy = 'let the file match the key only, with ".*" as the value'
    return Finding(WARNING, entry.path, f"yes, {verdict.unless}: {effect}", remedy)


def _check_injector() -> Iterator[Finding]:
    """Under containerd, hooks.d has an effect only through a running injector that sees the files."""
    yield from report_claims()
    if not injector.find_running():
        remedy = "run it, or see the documentation on containerd; if it runs in a pod, ask Kubernetes for that pod"
        yield Finding(WARNING, "read by", "no NRI hook-injector runs on the host", remedy)
