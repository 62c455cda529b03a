# SPDX-License-Identifier: Apache-2.0
"""Ten ways to break the program, each at one place, which the simulator has to notice."""

from __future__ import annotations

import importlib.util
import sys
from typing import NamedTuple


class BrokenRule(NamedTuple):
    """`what` is broken; in `module` each old text, which stands there once, becomes the new one.

    `scenario`: one in which the oracle sees it.
    """

    what: str
    module: str
    changes: tuple[tuple[str, str], ...]
    scenario: str


_LOOKS_AGAIN = "found = next((it for it in needed if it.id in same), None)"
_MAKES_GROUP = "        made = context.resctrl.make(group.path)\n"
MUTANTS = {
    "M1": BrokenRule(
        "the lock's inode is not compared with that of its path",
        "hook.state.store",
        (("if is_ours and system.same_file(descriptor, path, self.descriptor):", "if is_ours:"),),
        "c1 | p1 | c2 | c3",
    ),
    "M2": BrokenRule(
        "the lock is given back before its file is unlinked",
        "hook.state.store",
        (
            (
                "            if self.state is None or self.state.completed_at is not None:\n",
                "            system.close(self._descriptor)\n"
                "            if self.state is None or self.state.completed_at is not None:\n",
            ),
            ("        finally:\n            system.close(self._descriptor)\n", "        finally:\n            pass\n"),
        ),
        "snapshot_ttl=0; c1 | p1 | c2 | c3",
    ),
    "M3": BrokenRule(
        "the lock is not taken",
        "hook.state.store",
        (("system.try_flock(descriptor) or system.wait_for_flock(descriptor, deadline)", "True"),),
        "| c1 | c2",
    ),
    "M4": BrokenRule(
        "reconcile does not look again whether a member is dead",
        "hook.reconcile.act",
        ((_LOOKS_AGAIN, f'found = action if action.verb == "drop" else {_LOOKS_AGAIN[8:]}'),),
        "c1 d1 | c1 | r",
    ),
    "M5": BrokenRule(
        "reconcile does not look again whether a key has members",
        "hook.reconcile.act",
        ((_LOOKS_AGAIN, f'found = action if action.verb == "end" else {_LOOKS_AGAIN[8:]}'),),
        "linger=60; c1 p1 t100 | c2 | r",
    ),
    "M6": BrokenRule(
        "a group is removed as an orphan without a look at its record",
        "hook.stages.reclaim",
        (("if _is_on(path, locked.state) or context", "if context"),),
        "linger=60; c1 d1 k1 | c2 p2 | r",
    ),
    "M7": BrokenRule(
        "reconcile does not look again whether a container in the index is a member",
        "hook.reconcile.act",
        ((_LOOKS_AGAIN, f'found = action if action.verb == "forget" else {_LOOKS_AGAIN[8:]}'),),
        "| c1 | r",
    ),
    "M8": BrokenRule(
        "a member is recorded after its group is made",
        "hook.stages.create",
        (
            ("        locked.commit(state)\n", ""),
            (_MAKES_GROUP, _MAKES_GROUP + "        locked.commit(state)\n"),
        ),
        "c1 | c2 | r",
    ),
    "M9": BrokenRule(
        "a group that another tool removed is not made again",
        "hook.stages.retry",
        (("return attempt.returns <= _MOST_RETURNS", "return False"),),
        "| c1 | x1",
    ),
    "M10": BrokenRule(
        "poststop takes out a member that lives",
        "hook.stages.remove",
        (("over = [] if member is not None and procfs.is_dead(", "over = [] if False and procfs.is_dead("),),
        "c1 d1 | c1 | l1",
    ),
}


def apply(name: str) -> None:
    """Break the program, of which nothing that is broken is imported yet."""
    mutant = MUTANTS[name]
    spec = importlib.util.find_spec(mutant.module)
    assert spec is not None
    assert spec.origin is not None
    with open(spec.origin, encoding="utf-8") as file:
        source = file.read()
    for old, new in mutant.changes:
        if source.count(old) != 1:
            raise ValueError(f"{name}: {mutant.module} has {source.count(old)} times {old!r}")
        source = source.replace(old, new)
    module = importlib.util.module_from_spec(spec)
    sys.modules[mutant.module] = module
    exec(compile(source, spec.origin, "exec"), module.__dict__)  # noqa: S102  our own sources
    package, _, last = mutant.module.rpartition(".")
    setattr(sys.modules[package], last, module)
