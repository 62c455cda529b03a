# SPDX-License-Identifier: Apache-2.0
"""A change of the program's text: make_mutants makes it, judge_mutants judges it."""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """One change.

    `module`: by its path in hook/, such as `stages/create`. `name` says the change in full, and outlives lines that
    move; `id` is that of the whole text, changed. `lines`: those that it is in; `scope`: those of its function, of its
    class or of all the module if it is in none.
    """

    name: str
    id: str
    module: str
    lines: list[int]
    scope: list[int]
    text: str
