# SPDX-License-Identifier: Apache-2.0
"""The run directory, key by key: its lock, its record, the index, and the records of failures. No listing: `contents`.

    groups/<key>.json             what is recorded of a key (models.KeyState), written whole and renamed
    groups/<key>.json.unreadable-<inode>  what was found in its place and not understood (`damage`), for a day
    locks/<key>                   its flock; the holder that empties the key unlinks it
    members/<container>.json      the index: which key a container belongs to
    unmonitored/<container>.json  why a container is not monitored
    runs/<stage>-<result>         as many bytes as there were hooks of that stage with that result (`run_counters`)
    runs/unrecorded               as many bytes as there were failures that could not be recorded
    freed                         CLOCK_BOOTTIME at which one of our groups last gave its RMID back
    said-<what>                   that a line was logged already in this boot

Everything is opened relative to the run directory, which must be root's and writable by root alone, so that no other
user can plant a link below it.
"""

from __future__ import annotations

from hook.base import jsontext, names, system
from hook.base.models import Failure, Index, KeyState, Member, MonGroup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

    from hook.base.errors import HookError

PARTS = ("groups", "members", "unmonitored", "runs", "locks")  # where locks is, the others are
STATE_LIMIT = 16 << 20


class RunDir:
    """The run directory, opened, with its `descriptor` for other modules that keep files in it.

    `complaints` collects what was found broken and dealt with on the way.
    """

    def __init__(self, path: str) -> None:
        """Open the run directory, making it if need be. OSError, or HookError `io` if it cannot be trusted."""
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
            from hook.state import damage

            raise damage.of_owner(path, owner, mode)

    def make_parts(self) -> None:
        """Make what is missing of its directories."""
        for part in PARTS:
            _make_directory(part, 0o700, self.descriptor)

    def lock(self, key: str, deadline: float) -> LockedKey:
        """Take a key's lock, waiting until `deadline` (system.monotonic) at the most: HookError `lock_timeout` then.

        flock(2) wakes waiters roughly in the order in which they came. The inode is compared afterwards: the previous
        holder may have unlinked the file.
        """
        path = "locks/" + key
        while True:
            descriptor = self._open_lock(path)
            try:
                is_ours = system.try_flock(descriptor) or system.wait_for_flock(descriptor, deadline)
                if is_ours and system.same_file(descriptor, path, self.descriptor):
                    return LockedKey(self, key, descriptor)
            except BaseException:
                system.close(descriptor)
                raise
            system.close(descriptor)
            if not is_ours or system.monotonic() >= deadline:
                from hook.state import damage

                raise damage.of_lock(self.path, key)

    def _open_lock(self, path: str) -> int:
        try:
            return system.open_lock(path, self.descriptor)
        except FileNotFoundError:  # the maker of the run directory was killed before it had made its parts
            self.make_parts()
            return system.open_lock(path, self.descriptor)

    def unlock(self, key: str, descriptor: int, *, unlink: bool) -> None:
        """Give a lock back. Its file goes first if the key is empty: the other way round could unlink another's."""
        try:
            if unlink:
                system.unlink("locks/" + key, self.descriptor)
        finally:
            system.close(descriptor)

    def read_key(self, key: str) -> KeyState | None:
        """Read what is recorded of a key, or None. Call it under the key's lock.

        A state that cannot be understood (torn, foreign, of a newer version) is renamed aside, so that nothing is
        lost, and the key goes on as *recovering*: it may have members that we do not know of.
        """
        try:
            text = system.read_file(f"groups/{key}.json", STATE_LIMIT, self.descriptor)
            state = KeyState.model_validate(jsontext.loads(text))
            if state.key == key:
                return state
            error: Exception = ValueError(f"it is of {state.key!r}")
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as caught:
            error = caught
        from hook.state import damage

        return damage.set_aside(self, key, error)

    def write_key(self, state: KeyState) -> None:
        """Commit what is known of a key. To be called under its lock."""
        self._replace(f"groups/{state.key}.json", f"groups/.{state.key}.tmp", state)

    def remove_key(self, key: str) -> None:
        """Forget a key. To be called under its lock."""
        system.unlink(f"groups/{key}.json", self.descriptor)

    def key_of(self, container: str) -> str | None:
        """Find the key that a container is indexed under, or None."""
        try:
            text = system.read_file(f"members/{container}.json", dir_fd=self.descriptor)
            return Index.model_validate(jsontext.loads(text)).key
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            from hook.state import damage

            self.complaints.append(damage.of_index(self.path, container, error))
            return None

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
        """Note that an RMID was just given back: a hook that meets EBUSY soon knows that waiting helps.

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


def changed(
    state: KeyState,
    *,
    groups: list[MonGroup] | None = None,
    members: dict[str, Member] | None = None,
) -> KeyState:
    """Return the state with other groups or members, as valid as any: the models check what is written, too.

    `generation` goes up with each change of what consumers see.
    """
    fields = dict(state)
    if members is not None:
        fields["members"] = members
    if groups is not None and groups is not state.groups:
        fields["groups"] = groups
        if _shown(groups) != _shown(state.groups):
            fields["generation"] = next_generation(state)
    return KeyState(**fields)


def next_generation(state: KeyState) -> int:
    """Count one change. After the highest number that a record may hold, which only damage reaches, comes 1."""
    return state.generation % (2**63 - 1) + 1


def _shown(groups: list[MonGroup]) -> list[tuple[object, ...]]:
    """What consumers see of groups."""
    return [(it.path, it.inode, it.begin, it.end, it.before, it.known) for it in groups if it.begin is not None]
