# SPDX-License-Identifier: Apache-2.0
"""The run directory: its records, each a model in a JSON file, and the lock of each key.

    groups/<key>.json             the state of a key (models.KeyState)
    groups/<key>.json.unreadable-<inode>  a state that could not be read, kept for a day (`damage`)
    locks/<key>                   its flock; the hook that empties the key unlinks it
    members/<container>.json      the index: which key a container belongs to
    unmonitored/<container>.json  why a container is not monitored; written and removed under
                                  locks/<container>
    reconcile.json, watch.json, unhooked.json, view.json
                                  the work and the findings of reconcile, watch and view
    runs/<stage>-<result>         one byte for each hook of that stage with that result
    runs/unrecorded               one byte for each failure that could not be recorded
    runs/dropped_lines            one byte for each line of history that was dropped unwritten
    runs/dropped_snapshots        one byte for each completed key that reconcile forgot early, since
                                  there were too many
    podman-pods.wanted, podman-pods.json  the mark and the answer of Podman (node/naming)
    freed                         CLOCK_BOOTTIME at which one of our groups last gave its RMID back
    said-<what>                   one byte for each time that a message would be logged, which is
                                  once in a boot

Everything is opened relative to the run directory, which must be root's and writable by root alone,
so that no other user can plant a link below it. `records` reads it without locks.
"""

from __future__ import annotations

from hook import formats, names, system
from hook.errors import HookError, Reason
from hook.models import Failure, Index, KeyState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol, TypeVar

    from hook.models import Member, Model

    ModelT = TypeVar("ModelT", bound=Model)

    class Reader(Protocol):
        """What reads a run directory: a RunDir, or one that cannot write (node/records)."""

        path: str
        descriptor: int

        def read(self, model: type[ModelT], name: str) -> ModelT | None: ...

        def read_json(self, model: type[Model], name: str) -> Any: ...  # noqa: ANN401  as below

        def has(self, model: type[Model], name: str) -> bool: ...

        def glance(self, model: type[ModelT], name: str) -> ModelT | None: ...


PLACES = {KeyState: "groups", Index: "members", Failure: "unmonitored"}
"""The directory of each model's records.

Those of hook/node/models.py are in the run directory itself.
"""
LIMIT = 16 << 20


class RunDir:
    """The open run directory, to read and to write.

    `descriptor` is for other modules that read files in it.
    """

    # The kind of the failure that a lock was not free in time; `jobs` has another.
    lock_error = "locked"

    def __init__(self, path: str, complaints: list[HookError] | None = None) -> None:
        """Open the run directory, or make it.

        Problems that are handled on the way go to `complaints`.

        Raises HookError `io` if that fails, or another user could write to it.
        """
        self.path = path
        self.complaints = complaints if complaints is not None else []  # the caller's
        try:
            try:
                self.descriptor = open_run_dir(path)
            except FileNotFoundError:
                from hook import rare

                rare.ensure_directory(path, 0o755)
                self.descriptor = open_run_dir(path)
                rare.make_parts(self.descriptor)
        except OSError as error:
            from hook import rare

            raise rare.as_hook_error("cannot create or open the run directory", error) from error

    def complain(self, problem: str, error: HookError | OSError) -> None:
        """Add a failure that stops nothing to `complaints`."""
        from hook import rare

        self.complaints.append(rare.as_hook_error(problem, error))

    def read(self: Reader, model: type[ModelT], name: str) -> ModelT | None:
        """Read a record; returns None if it does not exist.

        OSError and ValueError say that it is unreadable.
        """
        try:
            return model.model_validate(self.read_json(model, name))
        except FileNotFoundError:
            return None

    def read_json(self: Reader, model: type[Model], name: str) -> Any:  # noqa: ANN401  that is what JSON is
        """Read the content of a record, which may be of a newer version.

        Raises OSError and ValueError.
        """
        return formats.loads(system.read_file(file_of(model, name), LIMIT, self.descriptor))

    def has(self: Reader, model: type[Model], name: str) -> bool:
        """Whether a record exists, readable or not."""
        return system.try_call(system.inode, file_of(model, name), self.descriptor) is not None

    def glance(self: Reader, model: type[ModelT], name: str) -> ModelT | None:
        """Read a record without its lock, so that it may be outdated at once.

        An unreadable one counts as missing.
        """
        try:
            return self.read(model, name)
        except (OSError, ValueError):
            return None

    def read_index(self, container: str) -> str | None:
        """Read a container's key from its index, or return None if there is none.

        HookError `io`: it is unreadable.
        """
        try:
            index = self.read(Index, container)
        except (OSError, ValueError) as error:
            raise HookError(
                Reason.IO, "unreadable index", run_dir=self.path, container=container, error=error
            ) from error
        return index.key if index is not None else None

    def write(self, model: type[ModelT], name: str, record: ModelT, owner: str = "") -> None:
        """Replace a record atomically: a reader, also after a crash,
        finds the old one or all of the new one.

        `owner` is the key whose lock the caller holds, if the record is not named by it.
        The temporary file gets it.
        """
        path = file_of(model, name)
        temporary = f"{path.rpartition('/')[0]}/.{owner or name}.tmp"
        try:
            self._replace(path, temporary, record)
        except OSError as error:
            from hook import damage

            damage.make_way(self, path, error)
            self._replace(path, temporary, record)

    def _replace(self, path: str, temporary: str, record: Model) -> None:
        try:
            system.write_new(temporary, formats.dumps(record) + "\n", self.descriptor)
            system.rename(temporary, path, self.descriptor)
        except BaseException:
            from hook import rare

            rare.remove_tree(temporary, self.descriptor)
            raise

    def remove(self, model: type[Model], name: str) -> None:
        """Remove a record, or nothing if it does not exist."""
        system.unlink(file_of(model, name), self.descriptor)

    def lock(self, key: str, deadline: float) -> LockedKey:
        """Take a key's lock; after `deadline` (system.monotonic) raise HookError `lock_timeout`.

        flock(2) wakes waiters roughly in the order in which they came. The previous holder may have
        unlinked the file by then, or another program the whole run directory: such a file has no
        name. Nothing gives a lock file another one, by a link or a rename.
        """
        path = "locks/" + key
        while True:
            try:
                descriptor = system.open_lock(path, self.descriptor)
            except OSError as error:
                from hook import damage

                damage.make_way(self, path, error)
                descriptor = system.open_lock(path, self.descriptor)
            try:
                is_ours = system.try_flock(descriptor)
                if not is_ours:
                    from hook import rare

                    is_ours = rare.wait_for_flock(descriptor, deadline)
                if is_ours and system.count_links(descriptor) > 0:
                    return LockedKey(self, key, descriptor)
            except BaseException:
                system.close(descriptor)
                raise
            system.close(descriptor)
            if not is_ours or system.monotonic() >= deadline:
                raise HookError(Reason.LOCK_TIMEOUT, self.lock_error, key=key)

    def read_key(self, key: str) -> KeyState | None:
        """Read the state of a key, or return None if it has none. Call it under the key's lock.

        An unreadable state (torn, foreign, of a newer version) is renamed, so that nothing is lost,
        and the key becomes *recovering*: it may have members that we do not know of.
        """
        try:
            state = self.read(KeyState, key)
            if state is None or state.key == key:
                return state
            error: Exception = ValueError(f"it is of {state.key!r}")
        except (OSError, ValueError) as caught:
            error = caught
        from hook import damage

        return damage.set_aside(self, key, error)

    def write_index(self, container: str, state: KeyState, member: Member) -> None:
        """Note, under its key's lock, which key a container belongs to,
        and what a rebuild of its record needs.

        A displaced member (life_turns.name_displaced) gets none: poststop names the ID,
        which is another member's.
        """
        if "@" not in container:
            index = Index(
                key=state.key,
                pid=member.pid,
                starttime=member.starttime,
                history_file=state.history_file,
                job_labels=state.job_labels,
            )
            self.write(Index, container, index, owner=state.key)

    # --- Marks: files without a model

    def note_freed(self) -> None:
        """Note that an RMID was just given back:
        a hook that gets EBUSY soon after knows that waiting helps.

        A failed write is ignored: a full /run must not keep a key on record whose groups are gone.
        """
        system.try_call(system.write_new, "freed", f"{system.boottime():.3f}\n", self.descriptor)

    def count_run(self, name: str, number: int = 1) -> None:
        """Count events for `metrics`, by one more byte in a file for each,
        which needs no lock and costs little.
        """
        system.try_call(system.append, "runs/" + name, "." * number, self.descriptor)


class LockedKey:
    """A key whose lock we hold. `with` reads its `state`, and gives the lock back."""

    def __init__(self, run: RunDir, key: str, descriptor: int) -> None:
        self._run = run
        self._key = key
        self._descriptor = descriptor
        self.state: KeyState | None = None

    def commit(self, state: KeyState) -> None:
        """Write `state` as the key's record: one step of its way."""
        if state != self.state:
            self._run.write(KeyState, self._key, state)
            self.state = state

    def clear(self) -> None:
        """Remove the key's record. Its lock file goes when the lock is given back."""
        self._run.remove(KeyState, self._key)
        self.state = None

    def __enter__(self) -> LockedKey:
        try:
            self.state = self._run.read_key(self._key)
        except BaseException:
            system.close(self._descriptor)
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        try:
            if self.state is None or self.state.completed_at is not None:
                # Before the lock is given back: in the other order this could unlink
                # another hook's lock file.
                system.unlink("locks/" + self._key, self._run.descriptor)
        finally:
            system.close(self._descriptor)


def file_of(model: type[Model], name: str) -> str:
    """The path of a record in the run directory."""
    return f"{PLACES.get(model, '.')}/{name}.json"


def open_run_dir(path: str) -> int:
    """Open a run directory; returns its descriptor.

    Raises OSError, and HookError `io` if another user could write to it.
    """
    try:
        descriptor = system.open_directory(path)
    except OSError as error:
        if error.errno not in (system.ENOTDIR, system.ELOOP):
            raise
        raise HookError(Reason.IO, "no directory", path=path) from None
    owner, mode = system.owner_and_mode(descriptor)
    if (owner != 0 and owner != system.user_id()) or mode & 0o022:
        system.close(descriptor)
        raise HookError(Reason.IO, "not root's", path=path, owner=owner, mode=mode)
    return descriptor


# --- Lists, whose cost grows with the node: no usual start asks for one


def list_records(run: Reader, model: type[Model]) -> list[str]:
    """List the keys, or containers, that have a record of a model. Raises OSError."""
    return pick_ids(list_part(run, PLACES[model]), "", ".json")


def list_part(run: Reader, part: str) -> list[str]:
    """List the names in a directory of the run directory; none if it does not exist."""
    try:
        return system.list_directory(part, run.descriptor)
    except FileNotFoundError:
        return []


def pick_ids(files: list[str], start: str, end: str) -> list[str]:
    """Return the IDs between this start and this end of the files' names."""
    stems = (
        file[len(start) : -len(end)]
        for file in files
        if file.startswith(start) and file.endswith(end)
    )
    return [stem for stem in stems if names.is_container_id(stem)]


def list_states(run: Reader) -> list[KeyState]:
    """Read all states that are readable. The cost grows with the node."""
    states = [run.glance(KeyState, key) for key in list_records(run, KeyState)]
    return [state for state in states if state is not None]
