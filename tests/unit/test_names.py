# SPDX-License-Identifier: Apache-2.0
"""What may become a key, a group's name or a part of a path: nothing that leaves the directory it is put in."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hook import names

Rule = Callable[[str], str]
UID = "87a3fb58-4084-4186-9c0e-93cf8c32e2ce"

ACCEPTED: list[tuple[Rule, str]] = [
    *((names.container_id, text) for text in ("a", "0", "Z_.+,-", "a..", "a" * 200)),
    *((names.component, text) for text in ("...", " ", "-rf", "ü\\", "a" * 255)),
    *((names.path, text) for text in ("/", "relative", "/a/../b", "a" * 4095)),
    *((names.ctrl_group, text) for text in ("/", "gold")),
    *((names.group_prefix, text) for text in ("o", "oci-", "a" * 50)),
    *((names.directory, text) for text in ("/a", "/a/..b/.c")),
    *((names.file, text) for text in ("", "/a", "/var/log/a/b.jsonl")),
    *((names.label, text) for text in ("a", "_", "_a", "Z9_", "a" * 64, "a__b")),
    *((names.label_value, text) for text in (" ", "a=b,c", 'J\u00f6rg "x"\\', "a" * 128)),
    *((names.mon_group, f"{text}/mon_groups/x") for text in ("", "/sys/fs/resctrl", "/sys/fs/resctrl/gold")),
    *((names.member, text) for text in ("c1", "c1@7-100")),
]

REFUSED: list[tuple[Rule, str]] = [
    *((names.container_id, text) for text in ("", "a" * 201, "a/b", "a b", "a\n", "\na", "a\0", "ä", "\u0661", "%s")),
    *((names.container_id, first + "a") for first in "-_.+,"),
    *((names.component, text) for text in ("", ".", "..", "a/b", "/", "/a", "a/", "a\0", "a\n", "a\ud800", "a" * 256)),
    *((names.path, text) for text in ("", "a\0b", "a\ud800", "a" * 4096)),
    *((names.ctrl_group, text) for text in ("", ".", "..", "//", "a/b", "gold/", "gold\n")),
    *((names.group_prefix, text) for text in ("", "a" * 51, "../", "a/", "-a", ".a", "a b", "a\n")),
    *(
        (names.directory, text)
        for text in ("", "/", "//", "a", "a/b", "/a//b", "/a/./b", "/a/../b", "/..", "/a\0", "/\ud800")
    ),
    *((names.file, text) for text in ("/", "a", "/a/", "/a/../b", "/a\0")),
    *((names.label, text) for text in ("", "__", "__a", "9", "0a", "a-b", "a b", "a\n", "\u00e4", "\u0661", "a" * 65)),
    *((names.label_value, text) for text in ("", "a\n", "\x1b[2J", "a\u202e", "\udcff", "a" * 129)),
    *((names.mon_group, text) for text in ("", "/", "/x", "/mon_groups", "/mon_groups/", "/mon_groups/..", "/r/a/b")),
    *((names.mon_group, text) for text in ("mon_groups/x", "/r/mon_groups/x/", "/r/mon_groups//x", "/mon_groups/a/b")),
    *((names.member, text) for text in ("", "../x", "\ud800", "@7-100", "c1@", "c1@7", "c1@-1", "c1@7-1-0", "a b@7-1")),
    (names.member, "c1@7-\u0663"),
]


@pytest.mark.parametrize(("rule", "text"), ACCEPTED, ids=lambda it: getattr(it, "__name__", None))
def test_what_is_right_is_returned_as_it_is(rule: Rule, text: str) -> None:
    assert rule(text) == text


@pytest.mark.parametrize(("rule", "text"), REFUSED, ids=lambda it: getattr(it, "__name__", None))
def test_what_is_wrong_is_a_value_error(rule: Rule, text: str) -> None:
    with pytest.raises(ValueError, match=r"^not "):
        rule(text)


def test_a_directory_loses_the_slashes_at_its_end() -> None:
    assert names.directory("/a/b///") == "/a/b"


def test_a_former_life_is_named_after_its_container_and_is_no_container() -> None:
    life = names.displaced_member("c1", 7, 100)
    assert names.container_of(life) == names.container_of("c1") == "c1"
    assert [names.member(name) for name in (life, "c1")] == [life, "c1"]
    with pytest.raises(ValueError, match="not a container ID"):
        names.container_id(life)


near_names = st.text(st.sampled_from("aZ0._+,-/\0\n \u00e4\ud800"), max_size=6)
texts = st.text() | near_names | st.text("a", min_size=49, max_size=52) | st.text("a", min_size=199, max_size=256)


@pytest.mark.parametrize("rule", [names.container_id, names.component, names.group_prefix])
def test_nothing_accepted_leaves_its_directory(rule: Rule) -> None:
    @given(texts | st.uuids().map(str))
    def run(text: str) -> None:
        try:
            name = rule(text)
        except ValueError:
            return
        path = os.path.join("/d", name)
        assert os.path.normpath(path) == path
        assert os.path.dirname(path) == "/d"
        assert os.path.basename(path) == name
        assert "\0" not in path

    run()


@given(texts)
def test_a_directory_is_accepted_once_and_for_all(text: str) -> None:
    try:
        once = names.directory("/" + text)
    except ValueError:
        return
    assert names.directory(once) == once == os.path.normpath(once)


def test_the_longest_names_together_are_a_name_that_file_systems_take() -> None:
    longest = names.group_prefix("p" * 50) + names.container_id("c" * 200)
    assert len(longest.encode()) <= 255
    assert len(f".{names.container_id('c' * 200)}.json.unreadable-{10**15}".encode()) <= 255
