"""A change of the program's text: made by tests.faults.mutation.make_mutants, judged by tests.faults.mutation.judge_mutants."""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """One change.

    `name` says it in full, and outlives lines that move; `id` is that of the whole text, changed. `lines`: those
    that it is in; `scope`: those of its function, of its class or of all the module if it is in none.
    """

    name: str
    id: str
    module: str
    lines: list[int]
    scope: list[int]
    text: str
