# SPDX-License-Identifier: Apache-2.0
"""What may become a key, a group's name or a part of a path.

Annotations are written by tenants, so nothing that comes from outside is used in a path unless a function here accepts
it. Each returns the (canonical) text or raises ValueError; the models use them as validators, in both of their forms.
"""

from __future__ import annotations

# Texts, not sets, which take longer to make than to use once: `not text.strip(these)` has nothing but these in it.
_ALPHANUMERIC = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
_ID_CHARACTERS = _ALPHANUMERIC + "_.+,-"
_ID_LIMIT = 200
_PREFIX_LIMIT = 50  # prefix and ID together stay below NAME_MAX, 255


def container_id(text: str) -> str:
    """A container ID: `[A-Za-z0-9][A-Za-z0-9_.+,-]{0,199}`, which also makes it one safe path component."""
    if not text or len(text) > _ID_LIMIT or text[0] not in _ALPHANUMERIC or text.strip(_ID_CHARACTERS):
        raise ValueError("not a container ID")
    return text


def is_container_id(text: str) -> bool:
    """Whether `container_id` accepts a text."""
    try:
        return bool(container_id(text))
    except ValueError:
        return False


def former_life(container: str, pid: int, starttime: int) -> str:
    """The name of a member whose ID another live process has been given since: not an ID, so it is no container's."""
    return f"{container}@{pid}-{starttime}"


def member(text: str) -> str:
    """The name of a member: a container ID, or that of a former life."""
    container, is_former, life = text.partition("@")
    pid, _, starttime = life.partition("-")
    if is_former and not (pid.isdecimal() and starttime.isdecimal() and life.isascii()):
        raise ValueError("not the name of a member")
    container_id(container)
    return text


def container_of(member: str) -> str:
    """The container ID of a member's name."""
    return member.partition("@")[0]


def _is_encodable(text: str) -> bool:
    """Whether the kernel could be given a text: no NUL, and no half of a surrogate pair, which JSON lets pass."""
    try:
        return b"\0" not in text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False


def component(text: str) -> str:
    """One path component that stays where it is put: a ctrl_group's name, for instance."""
    if text in ("", ".", "..") or len(text) > 255 or "/" in text or "\n" in text or not _is_encodable(text):
        raise ValueError("not one path component")
    return text


def path(text: str) -> str:
    """A path that the kernel would look at."""
    if not text or len(text) > 4095 or not _is_encodable(text):
        raise ValueError("not a path")
    return text


def ctrl_group(text: str) -> str:
    """A ctrl_group as the kernel names it: `/` for the root one, else one component."""
    return text if text == "/" else component(text)


def group_prefix(text: str) -> str:
    """A prefix of group names: never empty, for what bears it is what we may remove."""
    if not text or len(text) > _PREFIX_LIMIT or text[0] not in _ALPHANUMERIC or text.strip(_ID_CHARACTERS):
        raise ValueError("not a group prefix")
    return text


def directory(text: str) -> str:
    """An absolute path without `.` and `..`, with no slash at its end."""
    path = text.rstrip("/")
    strays = "//" in path or "/./" in path + "/" or "/../" in path + "/"
    if not path.startswith("/") or strays or not _is_encodable(path):
        raise ValueError("not an absolute path")
    return path


def mon_group(text: str) -> str:
    """The full path of a mon_group: `<root>/[<ctrl_group>/]mon_groups/<name>`.

    State files are root's, but a path that is given to rmdir is looked at all the same.
    """
    if directory(text) != text or text.split("/")[-2] != "mon_groups":
        raise ValueError("not the path of a mon_group")
    return text
