# SPDX-License-Identifier: Apache-2.0
"""What may become a key, a group's name or a part of a path:
nothing that leaves the directory it is put in.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hook import life_turns, names
from hook.cli.options import check_label_value
from hook.names import (
    check_component,
    check_container_id,
    check_label,
    check_member,
    check_mon_group,
)

Rule = Callable[[str], str]
UID = "87a3fb58-4084-4186-9c0e-93cf8c32e2ce"

ACCEPTED: list[tuple[Rule, str]] = [
    *((check_container_id, text) for text in ("a", "0", "Z_.+,-", "a..", "a" * 200)),
    *((check_component, text) for text in ("...", " ", "-rf", "ü\\", "a" * 255)),
    *((names.check_path, text) for text in ("/", "relative", "/a/../b", "a" * 4095)),
    *((names.check_ctrl_group, text) for text in ("/", "gold")),
    *((names.check_group_prefix, text) for text in ("o", "oci-", "a" * 50)),
    *((names.check_directory, text) for text in ("/a", "/a/..b/.c")),
    *((names.check_file, text) for text in ("", "/a", "/var/log/a/b.jsonl")),
    *((check_label, text) for text in ("a", "_", "_a", "Z9_", "a" * 64, "a__b")),
    *((check_label_value, text) for text in (" ", "a=b,c", 'J\u00f6rg "x"\\', "a" * 128)),
    *(
        (check_mon_group, f"{text}/mon_groups/x")
        for text in ("", "/sys/fs/resctrl", "/sys/fs/resctrl/gold")
    ),
    *((check_member, text) for text in ("c1", "c1@7-100")),
]

REFUSED: list[tuple[Rule, str]] = [
    *(
        (check_container_id, text)
        for text in ("", "a" * 201, "a/b", "a b", "a\n", "\na", "a\0", "ä", "\u0661", "%s")
    ),
    *((check_container_id, first + "a") for first in "-_.+,"),
    *(
        (check_component, text)
        for text in ("", ".", "..", "a/b", "/", "/a", "a/", "a\0", "a\n", "a\ud800", "a" * 256)
    ),
    *((names.check_path, text) for text in ("", "a\0b", "a\ud800", "a" * 4096)),
    *((names.check_ctrl_group, text) for text in ("", ".", "..", "//", "a/b", "gold/", "gold\n")),
    *(
        (names.check_group_prefix, text)
        for text in ("", "a" * 51, "../", "a/", "-a", ".a", "a b", "a\n")
    ),
    *(
        (names.check_directory, text)
        for text in (
            "",
            "/",
            "//",
            "a",
            "a/b",
            "/a//b",
            "/a/./b",
            "/a/../b",
            "/..",
            "/a\0",
            "/\ud800",
        )
    ),
    *((names.check_file, text) for text in ("/", "a", "/a/", "/a/../b", "/a\0")),
    *(
        (check_label, text)
        for text in ("", "__", "__a", "9", "0a", "a-b", "a b", "a\n", "\u00e4", "\u0661", "a" * 65)
    ),
    *((check_label_value, text) for text in ("", "a\n", "\x1b[2J", "a\u202e", "\udcff", "a" * 129)),
    *(
        (check_mon_group, text)
        for text in ("", "/", "/x", "/mon_groups", "/mon_groups/", "/mon_groups/..", "/r/a/b")
    ),
    *(
        (check_mon_group, text)
        for text in ("mon_groups/x", "/r/mon_groups/x/", "/r/mon_groups//x", "/mon_groups/a/b")
    ),
    *(
        (check_member, text)
        for text in ("", "../x", "\ud800", "@7-100", "c1@", "c1@7", "c1@-1", "c1@7-1-0", "a b@7-1")
    ),
    (check_member, "c1@7-\u0663"),
]


@pytest.mark.parametrize(
    ("rule", "text"), ACCEPTED, ids=lambda value: getattr(value, "__name__", None)
)
def test_what_is_right_is_returned_as_it_is(rule: Rule, text: str) -> None:
    assert rule(text) == text


@pytest.mark.parametrize(
    ("rule", "text"), REFUSED, ids=lambda value: getattr(value, "__name__", None)
)
def test_what_is_wrong_is_a_value_error(rule: Rule, text: str) -> None:
    with pytest.raises(ValueError, match=r"^not "):
        rule(text)


def test_a_directory_loses_the_slashes_at_its_end() -> None:
    assert names.check_directory("/a/b///") == "/a/b"


def test_a_former_life_is_named_after_its_container_and_is_no_container() -> None:
    life = life_turns.name_displaced("c1", 7, 100)
    assert names.get_container_id(life) == names.get_container_id("c1") == "c1"
    assert [check_member(name) for name in (life, "c1")] == [life, "c1"]
    with pytest.raises(ValueError, match="not a container ID"):
        check_container_id(life)


near_names = st.text(st.sampled_from("aZ0._+,-/\0\n \u00e4\ud800"), max_size=6)
texts = (
    st.text()
    | near_names
    | st.text("a", min_size=49, max_size=52)
    | st.text("a", min_size=199, max_size=256)
)


@pytest.mark.parametrize("rule", [check_container_id, check_component, names.check_group_prefix])
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
        once = names.check_directory("/" + text)
    except ValueError:
        return
    assert names.check_directory(once) == once == os.path.normpath(once)


def test_the_longest_names_together_are_a_name_that_file_systems_take() -> None:
    longest = names.check_group_prefix("p" * 50) + check_container_id("c" * 200)
    assert len(longest.encode()) <= 255
    assert len(f".{check_container_id('c' * 200)}.json.unreadable-{10**15}".encode()) <= 255
