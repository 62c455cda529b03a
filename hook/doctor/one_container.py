"""`doctor --inject`: does this container get the hook, and if not, why not?"""

from __future__ import annotations

from hook.doctor.finding import FAILURE, OK, WARNING, Finding
from hook.doctor.runtimes import check_injectors
from hook.host import injector, would_inject
from hook.host.paths import PROGRAM

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hook.host.would_inject import Told, Verdict


def check_container(path: str, directories: Iterable[str] = ()) -> Iterator[Finding]:
    """What readers of hooks.d make of a container, and what our hook then makes of it. Raises OSError, ValueError.

    What has the hook in its config.json gets it in any case: of a base_runtime_spec, or of a reader before us.
    """
    container = would_inject.told(path, tuple(directories))
    yield Finding(OK, "read by", f"{container.reader}, from {', '.join(container.directories)}")
    if container.remark:
        remedy = 'it matters where a file goes by another one: give what kubelet sent, as {"annotations": {...}}'
        yield Finding(WARNING, "read by", container.remark, remedy)
    for arguments in container.given:
        yield Finding(OK, "config.json", f"has the hook: {would_inject.becomes(container, arguments)}")
    verdicts = would_inject.judge(container)
    for verdict in verdicts:
        yield _describe_verdict(container, verdict)
    gets = container.given or any(it.why_not is None and it.entry.calls(PROGRAM) for it in verdicts)
    if not gets:
        yield Finding(FAILURE, "the hook", "this container does not get it", container.remedy)
    elif container.reader == would_inject.INJECTOR and not container.given:
        yield from _check_injector()


def _describe_verdict(container: Told, verdict: Verdict) -> Finding:
    """What a file of hooks.d means for a container."""
    entry, why_not = verdict.entry, verdict.why_not
    if entry.problem is not None:
        return Finding(FAILURE, entry.path, f"readers refuse it, and every container: {entry.problem}", "mend it")
    if why_not is not None:
        return Finding(OK, entry.path, f"no: {why_not}")
    if entry.file is None or not entry.calls(PROGRAM):
        return Finding(OK, entry.path, "yes; it is another program's")
    becomes = would_inject.becomes(container, entry.file.hook.args or [])
    if not verdict.unless:
        return Finding(OK, entry.path, f"yes: {becomes}")
    remedy = 'let the file go by the key alone, with ".*" for the value'
    return Finding(WARNING, entry.path, f"yes, {verdict.unless}: {becomes}", remedy)


def _check_injector() -> Iterator[Finding]:
    """What hooks.d promises under containerd, an injector that runs and sees it has to keep."""
    pids = injector.running()
    yield from check_injectors(pids)
    if not pids:
        yield Finding(WARNING, "read by", "no NRI hook-injector runs here", "run it, or see the README on containerd")
