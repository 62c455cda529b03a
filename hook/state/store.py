# SPDX-License-Identifier: Apache-2.0
"""The run directory: its records, each a model in a JSON file, and the lock of each key.

    groups/<key>.json             what is recorded of a key (models.KeyState)
    groups/<key>.json.unreadable-<inode>  what was found in its place and not understood (`damage`), for a day
    locks/<key>                   its flock; the holder that empties the key unlinks it
    members/<container>.json      the index: which key a container belongs to
    unmonitored/<container>.json  why a container is not monitored
    reconcile.json, watch.json, unhooked.json, left-undone.json     what reconcile and watch have done and found
    runs/<stage>-<result>         as many bytes as there were hooks of that stage with that result
    runs/unrecorded               as many bytes as there were failures that could not be recorded
    freed                         CLOCK_BOOTTIME at which one of our groups last gave its RMID back
    said-<what>                   that a line was logged already in this boot

Everything is opened relative to the run directory, which must be root's and writable by root alone, so that no other
user can plant a link below it. For readers that need no lock: `records`.
"""

from __future__ import annotations

from hook.base import jsontext, names, system
from hook.base.models import Failure, Index, KeyState, LeftUndone, ReconcileRecord, Unhooked, WatchRecord

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import TypeVar

    from hook.base.errors import HookError
    from hook.base.models import Model, MonGroup

    ModelT = TypeVar("ModelT", bound=Model)

PLACES = {
    KeyState: "groups/",
    Index: "members/",
    Failure: "unmonitored/",
    ReconcileRecord: "reconcile",
    WatchRecord: "watch",
    Unhooked: "unhooked",
    LeftUndone: "left-undone",
}
"""Where the records of each model are; each of the last four has one record, whose name is empty."""
PARTS = ("groups", "members", "unmonitored", "runs", "locks")  # where locks is, the others are
_LIMIT = 16 << 20


class RunDir:
    """The run directory, opened, with its `descriptor` for other modules that keep files in it.

    `complaints` collects what was found broken and dealt with on the way.
    """

    def __init__(self, path: str) -> None:
        """Open the run directory, making it if need be. HookError `io` if it cannot be opened, or not be trusted."""
        self.path = path
        self.complaints: list[HookError] = []
        try:
            try:
                self.descriptor = system.open_directory(path)
            except FileNotFoundError:
                _make_directory(path, 0o755)
                self.descriptor = system.open_directory(path)
                self.make_parts()
            owner, mode = system.owner_and_mode(self.descriptor)
        except OSError as error:
            from hook.base import explain

            raise explain.system_error("cannot create or open the run directory", error) from error
        if owner != system.user_id() or mode & 0o022:
            from hook.base import explain

            raise explain.owner_error(path, owner, mode)

    def complain(self, problem: str, error: HookError | OSError) -> None:
        """Keep for a report what failed and stopped nothing."""
        from hook.base import explain

        self.complaints.append(explain.as_hook_error(problem, error))

    def make_parts(self) -> None:
        """Make what is missing of its directories."""
        for part in PARTS:
            _make_directory(part, 0o700, self.descriptor)

    # --- Records

    def read(self, model: type[ModelT], name: str = "") -> ModelT | None:
        """Read a record; None: there is none. OSError, ValueError: it is unreadable."""
        try:
            text = system.read_file(f"{PLACES[model]}{name}.json", _LIMIT, self.descriptor)
        except FileNotFoundError:
            return None
        return model.model_validate(jsontext.loads(text))

    def glance(self, model: type[ModelT], name: str = "") -> ModelT | None:
        """Read a record that may be outdated by now, for its lock is not held. None: nothing readable."""
        try:
            return self.read(model, name)
        except (OSError, ValueError):
            return None

    def write(self, model: type[ModelT], name: str, record: ModelT, owner: str = "") -> None:
        """Write a record whole, whatever is in its place: a reader, or a crash, sees the old one or all of this.

        `owner`: the key whose lock makes the temporary name ours, if that is not the record's own name.
        """
        path = f"{PLACES[model]}{name}.json"
        part, slash, own = path.rpartition("/")
        temporary = f"{part}{slash}.{owner or own[: -len('.json')]}.tmp"
        try:
            self._replace(path, temporary, record)
        except OSError as error:
            from hook.state import damage

            damage.make_way(self, path, error)
            self._replace(path, temporary, record)

    def _replace(self, path: str, temporary: str, record: Model) -> None:
        try:
            system.write_new(temporary, jsontext.dumps(record) + "\n", self.descriptor)
            system.rename(temporary, path, self.descriptor)
        except BaseException:
            system.remove_tree(temporary, self.descriptor)
            raise

    def remove(self, model: type[Model], name: str = "") -> None:
        """Remove a record, if there is one."""
        system.unlink(f"{PLACES[model]}{name}.json", self.descriptor)

    def names(self, model: type[Model]) -> list[str]:
        """List the keys, or containers, of the records of a model. A file whose name is no ID is none of ours."""
        found = [name[: -len(".json")] for name in self.list_part(PLACES[model].rstrip("/")) if name.endswith(".json")]
        return [name for name in found if names.is_container_id(name)]

    def list_part(self, part: str) -> list[str]:
        """List what is in a directory of it; nothing where it is not there."""
        try:
            return system.list_directory(part, self.descriptor)
        except FileNotFoundError:
            return []

    # --- Keys

    def list_states(self) -> list[KeyState]:
        """Read the states of all keys, as far as they are readable. It grows with the node."""
        states = [self.glance(KeyState, key) for key in self.names(KeyState)]
        return [state for state in states if state is not None]

    def lock(self, key: str, deadline: float) -> LockedKey:
        """Take a key's lock, waiting until `deadline` (system.monotonic) at the most: HookError `lock_timeout` then.

        flock(2) wakes waiters roughly in the order in which they came. The inode is compared afterwards: the previous
        holder may have unlinked the file.
        """
        path = "locks/" + key
        while True:
            try:
                descriptor = system.open_lock(path, self.descriptor)
            except FileNotFoundError:  # the maker of the run directory was killed before it had made its parts
                self.make_parts()
                descriptor = system.open_lock(path, self.descriptor)
            try:
                is_ours = system.try_flock(descriptor) or system.wait_for_flock(descriptor, deadline)
                if is_ours and system.same_file(descriptor, path, self.descriptor):
                    return LockedKey(self, key, descriptor)
            except BaseException:
                system.close(descriptor)
                raise
            system.close(descriptor)
            if not is_ours or system.monotonic() >= deadline:
                from hook.base import explain

                raise explain.lock_error(self.path, key)

    def read_key(self, key: str) -> KeyState | None:
        """Read what is recorded of a key, or None. Call it under the key's lock.

        A state that cannot be understood (torn, foreign, of a newer version) is renamed aside, so that nothing is
        lost, and the key goes on as *recovering*: it may have members that we do not know of.
        """
        try:
            state = self.read(KeyState, key)
            if state is None or state.key == key:
                return state
            error: Exception = ValueError(f"it is of {state.key!r}")
        except (OSError, ValueError) as caught:
            error = caught
        from hook.state import damage

        return damage.set_aside(self, key, error)

    def read_index(self, container: str) -> str | None:
        """Find the key that a container is indexed under, or None. HookError `io` if its index is unreadable."""
        try:
            index = self.read(Index, container)
        except (OSError, ValueError) as error:
            from hook.base import explain

            raise explain.index_error(self.path, container, error) from error
        return index.key if index is not None else None

    def write_index(self, container: str, key: str) -> None:
        """Note that a container belongs to a key, under that key's lock.

        Not for a former life (names.former_life): poststop comes by the container's ID, which is another member's.
        """
        if "@" not in container:
            self.write(Index, container, Index(key=key), owner=key)

    # --- Marks, which are no records

    def note_freed(self) -> None:
        """Note that an RMID was just given back: a hook that meets EBUSY soon knows that waiting helps.

        No more than a hint, so that a full /run does not keep a key whose groups are gone on record.
        """
        try:
            system.write_new("freed", f"{system.boottime():.3f}\n", self.descriptor)
        except OSError:
            pass

    def freed_within(self, seconds: float) -> bool:
        """Whether one of our hooks gave an RMID back that lately."""
        try:
            freed = float(system.read_file("freed", limit=64, dir_fd=self.descriptor))
        except (OSError, ValueError):
            return False
        return system.boottime() - freed <= seconds

    def count_run(self, name: str) -> None:
        """Count for `metrics`: a byte more in a file needs no lock, and costs next to nothing."""
        try:
            system.append("runs/" + name, ".", self.descriptor)
        except OSError:
            pass

    def is_first(self, what: str) -> bool:
        """Whether this is the first time in this boot that `what` is to be logged: /run does not outlive it."""
        try:
            system.create_exclusively("said-" + what, self.descriptor)
        except FileExistsError:
            return False
        except OSError:
            return True
        return True


class LockedKey:
    """A key whose lock is held, for `with`, which reads what is recorded of it: `state`."""

    def __init__(self, run: RunDir, key: str, descriptor: int) -> None:
        self._run = run
        self._key = key
        self._descriptor = descriptor
        self.state: KeyState | None = None

    def commit(self, state: KeyState) -> None:
        """Make `state` what is recorded of the key: one step of its life."""
        if state != self.state:
            self._run.write(KeyState, self._key, state)
            self.state = state

    def clear(self) -> None:
        """Forget the key; its lock goes with it when it is given back."""
        self._run.remove(KeyState, self._key)
        self.state = None

    def __enter__(self) -> LockedKey:
        try:
            self.state = self._run.read_key(self._key)
        except BaseException:
            system.close(self._descriptor)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self.state is None or self.state.completed_at is not None:
                # Before the lock is given back: the other way round this could unlink another hook's.
                system.unlink("locks/" + self._key, self._run.descriptor)
        finally:
            system.close(self._descriptor)


def replace(record: ModelT, **fields: object) -> ModelT:
    """Return a record with other fields, as valid as any: the models check what is written, too."""
    form = getattr(record, "_form", type(record))  # in the .pyz a record is of one class, and has its form
    changed: ModelT = form(**{**dict(record), **fields})
    return changed


def change(state: KeyState, groups: list[MonGroup], **fields: object) -> KeyState:
    """Give a state other groups, and fields. `generation` goes up with each change of what consumers see."""
    if _shown(groups) != _shown(state.groups):
        fields["generation"] = next_generation(state)
    return replace(state, groups=groups, **fields)


def next_generation(state: KeyState) -> int:
    """Count one change. After the highest number that a record may hold, which only damage reaches, comes 1."""
    return state.generation % (2**63 - 1) + 1


def _shown(groups: list[MonGroup]) -> list[tuple[object, ...]]:
    """What consumers see of groups."""
    return [(it.path, it.inode, it.begin, it.end, it.before, it.known) for it in groups if it.begin is not None]


def _make_directory(path: str, mode: int, dir_fd: int | None = None) -> None:
    try:
        system.mkdir(path, mode, dir_fd)
    except FileExistsError:
        pass
