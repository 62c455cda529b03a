"""The run directory: one module owns /run/resctrl-mon-hook. It holds the truth about each key, and the key's lock.

    groups/<key>.json           what is recorded of a key (models.KeyState), written whole and renamed
    groups/<key>.json.unreadable-<inode>  what was found in its place and not understood, for a day
    locks/<key>                 its flock; unlinked by whoever empties the key, while holding it
    members/<container>.json    the index: which key a container belongs to
    unmonitored/<container>.json  why a container is not monitored
    runs/<stage>-<result>       as many bytes as there were hooks of that stage with that result; reconcile makes holes
                                of them (room), which leaves the size as it is
    freed                       CLOCK_BOOTTIME at which one of our groups last gave its RMID back
    said-<what>                 that a line was logged already in this boot

Everything is opened relative to the run directory, which must be root's and writable by nobody else, so that no other
user can plant a link below it.
"""

from __future__ import annotations

import errno

from hook.base import jsontext, names, system
from hook.base.errors import HookError, Reason, explain
from hook.base.models import Failure, Index, KeyState, ValidationError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

    from hook.base.models import Kind

_PARTS = ("groups", "members", "unmonitored", "runs", "locks")  # where locks is, the others are
_STATE_LIMIT = 16 << 20
_KEPT = 86400.0  # seconds that people have to look at what we can do nothing with
_ASIDE = ".json.unreadable-"
_UNREADABLE = (errno.ELOOP, errno.EISDIR, errno.EFBIG, errno.ENXIO)  # a link, a directory, a giant, a socket


class RunDir:
    """The run directory, opened, with its `descriptor` for what others keep in it.

    `complaints` collects what was found broken and dealt with on the way.
    """

    def __init__(self, path: str) -> None:
        """Open the run directory, making it if need be. OSError or HookError `io` if it cannot be had or trusted."""
        self.path = path
        self.complaints: list[HookError] = []
        try:
            self.descriptor = system.open_directory(path)
        except FileNotFoundError:
            _make_directory(path, 0o755)
            self.descriptor = system.open_directory(path)
            self.make_parts()
        owner, mode = system.owner_and_mode(self.descriptor)
        if owner != system.user_id() or mode & 0o022:
            hint = f"remove it, or make it root's with mode 0755 (it is uid {owner}'s, mode {mode & 0o7777:04o})"
            raise HookError(Reason.IO, f"the run directory {path} is not ours alone", hint=hint)

    def make_parts(self) -> None:
        """Make what is missing of its directories."""
        for part in _PARTS:
            _make_directory(part, 0o700, self.descriptor)

    def lock(self, key: str, deadline: float) -> LockedKey:
        """Take a key's lock, waiting until `deadline` (system.monotonic) at the most: HookError `lock_timeout` then.

        Who waits gets it nearly in turn. The inode is compared since whoever empties the key unlinks the file that
        others wait for.
        """
        path = "locks/" + key
        while True:
            descriptor = self._open_lock(path)
            try:
                if not system.try_flock(descriptor) and not system.wait_for_flock(descriptor, deadline):
                    raise _lock_timeout(self.path, key)
                if system.same_file(descriptor, path, self.descriptor):
                    return LockedKey(self, key, descriptor)
            except BaseException:
                system.close(descriptor)
                raise
            system.close(descriptor)
            if system.monotonic() >= deadline:
                raise _lock_timeout(self.path, key)

    def _open_lock(self, path: str) -> int:
        try:
            return system.open_lock(path, self.descriptor)
        except FileNotFoundError:  # the maker of the run directory was killed before it had made its parts
            self.make_parts()
            return system.open_lock(path, self.descriptor)

    def unlock(self, key: str, descriptor: int, *, unlink: bool) -> None:
        """Give a lock back, removing its file first if the key is empty: the other way round could unlink another's."""
        try:
            if unlink:
                system.unlink("locks/" + key, self.descriptor)
        finally:
            system.close(descriptor)

    def read_key(self, key: str) -> KeyState | None:
        """What is recorded of a key, or None. To be called under its lock.

        A state that cannot be understood (torn, foreign, of a newer version) is renamed aside, so that nothing is
        lost, and the key goes on as *recovering*: it may have members that we do not know of.
        """
        path = f"groups/{key}.json"
        try:
            state = KeyState.model_validate(jsontext.loads(system.read_file(path, _STATE_LIMIT, self.descriptor)))
            if state.key == key:
                return state
            why = f"it is of {state.key!r}"
        except FileNotFoundError:
            return None
        except ValidationError as error:
            why = explain(error.errors())
        except ValueError as error:
            why = str(error)
        except OSError as error:
            if error.errno not in _UNREADABLE:
                raise
            why = str(error)
        return self._set_aside(key, path, why)

    def _set_aside(self, key: str, path: str, why: str) -> KeyState:
        # No two files have the same inode at a time, so this name is free, or a name of this very file already.
        aside = f"groups/{key}{_ASIDE}{system.inode(path, self.descriptor)}"
        # A second name for what is there, then the new state over the first name: killed in between, or with no room
        # for the new state, the next hook finds the key as unreadable as this one did, and never takes it for new.
        try:
            system.link(path, aside, self.descriptor)
        except FileExistsError:
            pass
        except PermissionError:  # a directory has one name only
            system.rename(path, aside, self.descriptor)
        state = unknown(key)
        self.write_key(state)
        problem = f"the state of key {key} cannot be read ({why})"
        hint = f"it is kept for a day as {self.path}/{aside}; `reconcile` rebuilds the key"
        self.complaints.append(HookError(Reason.IO, problem, hint=hint))
        return state

    def write_key(self, state: KeyState) -> None:
        """Commit what is known of a key. To be called under its lock."""
        self._replace(f"groups/{state.key}.json", f"groups/.{state.key}.tmp", state)

    def remove_key(self, key: str) -> None:
        """Forget a key. To be called under its lock."""
        system.unlink(f"groups/{key}.json", self.descriptor)

    def recorded(self) -> list[str]:
        """The keys that something is recorded of. Grows with the node: not for a start that succeeds."""
        names = self._names("groups")
        return [name[: -len(".json")] for name in names if name.endswith(".json") and not name.startswith(".")]

    def glance(self, key: str) -> KeyState | None:
        """What is recorded of a key, read without its lock: it may have changed already. None: nothing readable."""
        try:
            text = system.read_file(f"groups/{names.container_id(key)}.json", _STATE_LIMIT, self.descriptor)
            return KeyState.model_validate(jsontext.loads(text))
        except (OSError, ValueError):
            return None

    def leftovers(self, live: set[str]) -> list[str]:
        """The keys that a hook which was killed left files of: half-written ones, locks of keys that are not `live`."""
        found = {
            name[1 : -len(".tmp")] for part in ("groups", "members") for name in self._names(part) if _is_tmp(name)
        }
        found |= {name[: -len(".old")] if name.endswith(".old") else name for name in self._names("building")}
        found |= {name for name in self._names("locks") if name not in live}
        return sorted(name for name in found if _is_key(name))

    def half_failures(self) -> list[str]:
        """The containers whose failure record is half written."""
        found = [name[1 : -len(".tmp")] for name in self._names("unmonitored") if _is_tmp(name)]
        return [name for name in found if _is_key(name)]

    def remove_half_failure(self, container: str) -> None:
        """Remove a half-written record. A hook that is at it begins once more."""
        system.unlink(f"unmonitored/.{container}.tmp", self.descriptor)

    def tidy(self, key: str) -> None:
        """Remove the half-written files of a key, and what was set aside of it a day ago, under its lock."""
        for part in ("groups", "members"):
            system.unlink(f"{part}/.{key}.tmp", self.descriptor)
        for name in self._outdated_asides():
            if name.partition(_ASIDE)[0] == key:
                system.remove_tree("groups/" + name, self.descriptor)

    def set_aside(self) -> list[str]:
        """The keys with an unreadable file that was set aside a day ago. Grows with the node: not for the hook path."""
        return sorted({name.partition(_ASIDE)[0] for name in self._outdated_asides()})

    def _outdated_asides(self) -> list[str]:
        found = [name for name in self._names("groups") if _ASIDE in name and _is_key(name.partition(_ASIDE)[0])]
        return [name for name in found if self._is_outdated("groups/" + name)]

    def _is_outdated(self, path: str) -> bool:
        try:
            return system.age(path, self.descriptor) >= _KEPT
        except OSError:
            return False

    def _names(self, part: str) -> list[str]:
        try:
            return system.list_directory(part, self.descriptor)
        except FileNotFoundError:
            return []

    def key_of(self, container: str) -> str | None:
        """The key that a container is indexed under, or None."""
        path = f"members/{container}.json"
        try:
            return Index.model_validate(jsontext.loads(system.read_file(path, dir_fd=self.descriptor))).key
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            why = explain(error.errors()) if isinstance(error, ValidationError) else str(error)
            problem = f"the index of container {container} cannot be read ({why})"
            hint = f"`reconcile` drops its member once it is dead; the file is {self.path}/{path}"
            self.complaints.append(HookError(Reason.IO, problem, hint=hint))
            return None

    def indexed(self) -> dict[str, str]:
        """All containers in the index, and their keys. Grows with the node: not for the hook path."""
        found = [name[: -len(".json")] for name in self._names("members") if name.endswith(".json")]
        keys = {name: self.key_of(name) for name in found if _is_key(name)}
        return {name: key for name, key in keys.items() if key is not None}

    def write_index(self, container: str, key: str) -> None:
        """Note that a container belongs to a key. Under that key's lock, which also makes the temporary name ours.

        Not for a former life (names.former_life): poststop comes by the container's ID, which is another member's.
        """
        if names.container_of(container) == container:
            self._replace(f"members/{container}.json", f"members/.{key}.tmp", Index(key=key))

    def remove_index(self, container: str) -> None:
        """Forget which key a container belongs to."""
        system.unlink(f"members/{container}.json", self.descriptor)

    def failure_of(self, container: str) -> Failure | None:
        """The record of why a container is not monitored, or None."""
        try:
            text = system.read_file(f"unmonitored/{container}.json", dir_fd=self.descriptor)
            return Failure.model_validate(jsontext.loads(text))
        except (OSError, ValueError):
            return None

    def has_old_failure(self, container: str) -> bool:
        """Whether a failure was recorded a day ago, readable or not."""
        return self._is_outdated(f"unmonitored/{container}.json")

    def write_failure(self, failure: Failure) -> None:
        """Record why a container is not monitored."""
        place = f"unmonitored/{failure.container}.json"
        try:
            self._replace(place, f"unmonitored/.{failure.container}.tmp", failure)
        except FileNotFoundError:
            self.make_parts()
            self._replace(place, f"unmonitored/.{failure.container}.tmp", failure)

    def remove_failure(self, container: str) -> None:
        """Forget why a container is not monitored."""
        system.unlink(f"unmonitored/{container}.json", self.descriptor)

    def note_freed(self) -> None:
        """Note that an RMID was just given back: whoever meets EBUSY soon knows that waiting helps.

        No more than a hint, so that a full /run does not keep a key whose groups are gone on record.
        """
        try:
            system.write_new("freed", f"{system.boottime():.3f}\n", self.descriptor)
        except OSError:
            pass

    def count_run(self, stage: str, result: str) -> None:
        """Count this hook for `metrics`: a byte more in a file needs no lock, and costs next to nothing."""
        try:
            system.append(f"runs/{stage}-{result}", ".", self.descriptor)
        except OSError:
            pass

    def freed_within(self, seconds: float) -> bool:
        """Whether one of our hooks gave an RMID back that lately."""
        try:
            freed = float(system.read_file("freed", limit=64, dir_fd=self.descriptor))
        except (OSError, ValueError):
            return False
        return system.boottime() - freed <= seconds

    def first_time(self, what: str) -> bool:
        """Whether this is the first time in this boot that `what` is to be said: /run does not outlive it."""
        try:
            system.create_exclusively("said-" + what, self.descriptor)
        except FileExistsError:
            return False
        except OSError:
            return True
        return True

    def _replace(self, path: str, temporary: str, record: KeyState | Index | Failure) -> None:
        """Write a file whole: a reader, or a crash, sees what was there before or all of this."""
        try:
            system.write_new(temporary, jsontext.dumps(record) + "\n", self.descriptor)
            system.rename(temporary, path, self.descriptor)
        except BaseException:
            system.unlink(temporary, self.descriptor)
            raise


class LockedKey:
    """A key while its lock is held, for `with`. `state` is what is recorded of it, read under the lock."""

    def __init__(self, run: RunDir, key: str, descriptor: int) -> None:
        self._run = run
        self._key = key
        self._descriptor = descriptor
        self.state = run.read_key(key)

    def commit(self, state: KeyState) -> None:
        """Make `state` what is recorded of the key: one step of its life."""
        if state != self.state:
            self._run.write_key(state)
            self.state = state

    def clear(self) -> None:
        """Forget the key; its lock goes with it when it is given back."""
        self._run.remove_key(self._key)
        self.state = None

    def __enter__(self) -> LockedKey:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        over = self.state is None or self.state.completed_at is not None
        self._run.unlock(self._key, self._descriptor, unlink=over)


def _make_directory(path: str, mode: int, dir_fd: int | None = None) -> None:
    try:
        system.mkdir(path, mode, dir_fd)
    except FileExistsError:
        pass


def _lock_timeout(run_dir: str, key: str) -> HookError:
    return HookError(
        Reason.LOCK_TIMEOUT,
        f"the lock of key {key} was not to be had in time",
        tried=f"flock {run_dir}/locks/{key}",
        hint="another hook of this pod is stuck, or the node is starved: raise --lock-timeout",
    )


def unknown(key: str) -> KeyState:
    """The state of a key of which nothing is known but its name."""
    kind: Kind = "container"
    try:
        if names.pod_uid(key) == key:
            kind = "pod"
    except ValueError:
        pass
    now, boottime = system.now_utc(), system.boottime()
    return KeyState(key=key, kind=kind, recovering=True, created_at=now, created_boottime=boottime)


def _is_tmp(name: str) -> bool:
    return name.startswith(".") and name.endswith(".tmp")


def _is_key(name: str) -> bool:
    try:
        return names.container_id(name) == name
    except ValueError:
        return False
