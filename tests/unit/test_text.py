# SPDX-License-Identifier: Apache-2.0
"""How containers are named for people."""

from __future__ import annotations

import pytest

from hook.base.explain import short_id, who

ID = "5f3c" * 16


def test_only_the_ids_of_engines_are_cut() -> None:
    assert (short_id(ID), short_id("my-container")) == (ID[:12], "my-container")


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ((), "5f3c5f3c5f3c"),
        (("shop", "cart-0", "app"), "shop/cart-0 app (5f3c5f3c5f3c)"),
        (("shop", "cart-0", None), "shop/cart-0 (5f3c5f3c5f3c)"),
        ((None, "cart-0", "app"), "?/cart-0 app (5f3c5f3c5f3c)"),
        (("shop", None, "app"), "app (5f3c5f3c5f3c)"),
        (("shop", "a\nb", "\x1b[2J"), "shop/a\\nb \\x1b[2J (5f3c5f3c5f3c)"),
    ],
)
def test_a_container_is_named_as_far_as_it_is_known(names: tuple[str, ...], expected: str) -> None:
    assert who(ID, *names) == expected
