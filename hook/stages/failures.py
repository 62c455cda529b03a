"""The three traces of a failure: a line to syslog, a line on stderr, a record. None depends on the other two."""

from __future__ import annotations

from hook.base import procfs, system
from hook.base.errors import HookError
from hook.base.models import Failure
from hook.base.text import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.stages.create import Container
    from hook.state.rundir import RunDir

_IDENTIFIER = "resctrl-mon-hook"
_PRIORITY = 3 << 3 | 4  # LOG_DAEMON, LOG_WARNING: syslog(3)


def say(text: str, *, to_syslog: bool = True) -> None:
    """One line on stderr, and one to syslog."""
    line = printable(text)
    write = system.write_stderr  # here: a .pyz that cannot be read any more is Python's to tell of
    try:
        write(f"{_IDENTIFIER}: {line}".encode())
    except Exception:  # noqa: BLE001, S110  a trace that fails must not cost the other ones
        pass
    try:
        if to_syslog:
            _to_syslog(line)
    except Exception:  # noqa: BLE001, S110  as above
        pass


def record(run: RunDir | None, failure: Failure) -> None:
    """The record that `list`, `doctor` and `metrics` show, if there is a run directory to hold it."""
    try:
        if run is not None:
            run.write_failure(failure)
    except Exception as error:  # noqa: BLE001  a full /run, for one: said, and survived
        say(f"the record of this failure could not be written: {error}")


def failure_of(
    error: HookError, name: str, stage: str, container: Container | None = None, *, monitored: bool = False
) -> Failure:
    """A failure as it is recorded under `name`, with what is known of the container, for reconcile to try again."""
    key = container.key if container is not None else None
    return Failure(
        container=name,
        stage=stage,
        reason=error.reason,
        problem=printable(error.problem),
        tried=printable(error.tried),
        kernel=printable(error.kernel),
        hint=printable(error.hint),
        monitored=monitored,
        time=system.now_utc(),
        bundle=container.bundle if container is not None else None,
        pid=(container.pid or None) if container is not None else None,
        starttime=_starttime(container) if container is not None else None,
        key=key.name if key is not None else None,
        kind=key.kind if key is not None else None,
    )


def settle(run: RunDir, container: Container, stage: str) -> None:
    """The record of a container that is dealt with: none, or what is wrong with it although it is monitored."""
    if container.problem is None:
        run.remove_failure(container.id)
    else:
        record(run, failure_of(container.problem, container.id, stage, container, monitored=True))


def _starttime(container: Container) -> int | None:
    """When its process started, without which nothing is ever tried again by its pid; None if that cannot be told."""
    if container.starttime is not None or not container.pid:
        return container.starttime
    try:
        return procfs.starttime(container.pid)
    except (OSError, ValueError, IndexError):
        return None


def _to_syslog(line: str) -> None:
    """One datagram to /dev/log that is dropped rather than waited for: a full log must not hold a container.

    Format: RFC 3164, as syslog(3) sends it.
    """
    import _socket  # noqa: PLC0415  only what is wrong pays for it; `socket` would cost ten times as much

    stamp = system.syslog_time()
    datagram = f"<{_PRIORITY}>{stamp} {_IDENTIFIER}[{system.process_id()}]: {line}".encode()
    sender = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM)
    try:
        sender.setblocking(False)
        sender.connect("/dev/log")
        sender.send(datagram, _socket.MSG_DONTWAIT | _socket.MSG_NOSIGNAL)
    finally:
        sender.close()
