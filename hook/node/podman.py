# SPDX-License-Identifier: Apache-2.0
"""Reads the names that Podman keeps: of containers, for records that lack them, and of pods, which no hook gets.

Containers: containers/storage, `containers.json` and `volatile-containers.json` (those that a reboot removes). Pods:
libpod's database, which is `db.sql` (SQLite, the default since Podman 5) or `libpod/bolt_state.db` (bbolt). All are
root's files. None is locked or written; what is not as expected names nothing.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Collection, Mapping
from contextlib import closing
from functools import cached_property

from hook import conmon, identity, names, procfs, record, store, system
from hook.models import KeyState
from hook.node import engines, files

_LISTS = ("containers.json", "volatile-containers.json")
_LIMIT = 64 << 20  # bytes of a file of Podman's
_MOST_PODS = 10_000
_PATIENCE = 0.5  # seconds that SQLite waits for a writer
_HEX = "0123456789abcdef"


class Names:
    """Podman's names, each kind read when it is first asked for."""

    @cached_property
    def containers(self) -> Mapping[str, str]:
        """The name of each container, by its ID."""
        directories = system.try_call(files.list_names, self._root) or ()  # one for each storage driver ever used
        return read_containers([f"{self._root}/{it}" for it in directories if it.endswith("-containers")])

    @cached_property
    def pods(self) -> Mapping[str, str]:
        """The name of each pod, by the first digits of its ID."""
        return {**_read_bolt(f"{self._root}/libpod/bolt_state.db"), **_read_sqlite(f"{self._root}/db.sql")}

    @cached_property
    def _root(self) -> str:
        return engines.read_graph_root()


def read_containers(directories: Collection[str]) -> dict[str, str]:
    """The name of each container in these directories of containers/storage, by its ID. Skips unreadable files."""
    found: dict[str, str] = {}
    for path in [f"{directory}/{name}" for directory in directories for name in _LISTS]:
        listed = system.try_call(files.read_json, path, _LIMIT)
        for it in listed if isinstance(listed, list) else ():
            container, given = (it.get("id"), it.get("names")) if isinstance(it, dict) else (None, None)
            if isinstance(container, str) and isinstance(given, list) and given and isinstance(given[0], str):
                found[container] = given[0]
    return found


def name_running(pod: identity.Pod, container: str, bundle: str, places: list[str]) -> None:
    """Add Podman's names to the pod of a container that runs already, by the storage that its bundle is in.

    `places`: the cgroups that its runtime made for it, as in procfs.cgroups.
    """
    if pod.is_podmans:
        storage = os.path.dirname(os.path.dirname(bundle))  # of <storage>/<ID>/userdata
        pod.container = identity.bounded(read_containers([storage]).get(container))
        pod.name = conmon.find_pod(places, container)


def add_names(state: KeyState, known: Names) -> KeyState:
    """Add Podman's names to a key that lacks some; the same state if there is nothing to add.

    Only a container whose cgroup Podman made is looked up.
    """
    if state.kind == "pod":
        return state
    places = {it: member.cgroup for it, member in state.members.items() if member.cgroup is not None}
    makers = {it: identity.find_maker(procfs.find_own(place, it), it) for it, place in places.items()}
    ours = {it: place for it, place in places.items() if makers[it] == "libpod"}
    nameless = {it: names.container_of(it) for it in ours if state.members[it].name is None}
    found = {it: known.containers[name] for it, name in nameless.items() if name in known.containers}
    members = {it: store.replace(state.members[it], name=identity.bounded(name)) for it, name in found.items()}
    digits = state.pod_name or next(filter(None, (conmon.find_pod([place], it) for it, place in ours.items())), None)
    pod = digits
    if pod is not None and state.pod_namespace is None and len(pod) == conmon.POD_DIGITS and not pod.strip(_HEX):
        pod = identity.bounded(known.pods.get(pod, pod))
    if pod == state.pod_name and not members:
        return state
    name = state.name or next((it.name for it in members.values()), None) if state.kind == "container" else None
    named = store.replace(state, pod_name=digits, name=name, members={**state.members, **members})
    # The hook that records a container has the digits only: as a label they stay, also if the record was lost.
    return record.keep_labels(named, store.replace(named, pod_name=pod))


# --- libpod's database. Source: libpod/sqlite_state_internal.go, libpod/boltdb_state_internal.go


def _read_sqlite(path: str) -> dict[str, str]:
    """The names of the pods in `db.sql`, by digits of their IDs.

    It has a rollback journal, so a reader takes a shared lock for the moment of the query; Podman retries for 100 s.
    """
    try:
        import sqlite3
    except ImportError:
        return {}
    try:
        with files.HOST.opened(path):  # it is a regular file
            pass
        uri = path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
        query = "SELECT substr(ID, 1, ?), Name FROM PodConfig LIMIT ?"
        with closing(sqlite3.connect(f"file:{uri}?mode=ro", uri=True, timeout=_PATIENCE)) as base:
            rows = base.execute(query, (conmon.POD_DIGITS, _MOST_PODS)).fetchall()
    except (files.Unreadable, sqlite3.Error):
        return {}
    return {pod: name for pod, name in rows if isinstance(pod, str) and isinstance(name, str)}


# A bbolt file has two pages of metadata, of which the one with the higher transaction ID counts, and trees of branch
# and leaf pages. Source: etcd-io/bbolt, page.go, bucket.go, db.go.
_PAGE = struct.Struct("<QHHI")  # its number, flags, number of elements, overflow
# magic, version, size of a page, flags; root's page, its sequence, free, end, transaction
_META = struct.Struct("<4I5Q")
_BRANCH = struct.Struct("<IIQ")  # position of the key, its size, page
_LEAF = struct.Struct("<IIII")  # flags, position of the key, its size, size of the value
_BUCKET = struct.Struct("<QQ")  # page, sequence; page 0: the page itself follows
_MAGIC = 0xED0CDAED
_IS_BRANCH = 1
_MOST_PAGES = 1000


def _read_bolt(path: str) -> dict[str, str]:
    """The names of the pods in `bolt_state.db`, by digits of their IDs.

    Its bucket `pod` has a bucket for each pod, named by its ID, and `id-registry` has the name of each ID. A file that
    is written meanwhile may be no tree: then there are no names, until the next look.
    """
    try:
        content = memoryview(files.read(path, _LIMIT))
        size = _META.unpack_from(content, _PAGE.size)[2]
        metas = [_META.unpack_from(content, at + _PAGE.size) for at in (0, size)]
        root = max((it for it in metas if it[0] == _MAGIC and it[2] == size), key=lambda it: it[8])[4]
        buckets = _list_bolt(content, size, root)
        pods, given = (_list_bolt(content, size, *_open_bucket(buckets[it])) for it in (b"pod", b"id-registry"))
        return {pod[: conmon.POD_DIGITS].decode(): bytes(given[pod]).decode() for pod in pods if pod in given}
    except (files.Unreadable, KeyError, ValueError, struct.error):
        return {}


def _open_bucket(value: memoryview) -> tuple[int, memoryview | None]:
    """The page of a bucket's tree, or the bytes of its only page if they follow in the bucket's value."""
    number, _ = _BUCKET.unpack_from(value)
    return number, None if number else value[_BUCKET.size :]


def _list_bolt(content: memoryview, size: int, root: int, inline: memoryview | None = None) -> dict[bytes, memoryview]:
    """The keys and values of a tree. `size`: of a page. Raises ValueError, struct.error."""
    waiting = [content[root * size :] if inline is None else inline]
    found: dict[bytes, memoryview] = {}
    for _ in range(_MOST_PAGES):
        if not waiting:
            return found
        page = waiting.pop()
        _, flags, count, _ = _PAGE.unpack_from(page)
        for number in range(count):
            if flags & _IS_BRANCH:
                child = _BRANCH.unpack_from(page, _PAGE.size + number * _BRANCH.size)[2]
                waiting.append(content[child * size :])
            else:
                start = _PAGE.size + number * _LEAF.size
                _, position, length, value = _LEAF.unpack_from(page, start)
                at = start + position
                found[bytes(page[at : at + length])] = page[at + length : at + length + value]
    raise ValueError("too many pages")
