# SPDX-License-Identifier: Apache-2.0
"""Ways to break the program, each at one place, which the simulator has to notice."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]


class BrokenRule(NamedTuple):
    """What is broken: in the one module that has each of the old texts once,
    they become the new ones.

    `scenario`: one in which the oracle sees it.
    """

    what: str
    scenario: str
    changes: dict[str, str]


_LOOKS_AGAIN = "_find(diagnose_key(survey, action.key, locked.state, action.container), action)"


def _skip_second_look(what: str, verb: str, scenario: str) -> BrokenRule:
    blind = f'action if action.verb == "{verb}" else {_LOOKS_AGAIN}'
    return BrokenRule(
        f"reconcile does not look again whether {what}", scenario, {_LOOKS_AGAIN: blind}
    )


_TAKES_LOCK = "system.try_flock(descriptor)\n"
_GIVES_LOCK_BACK = "        finally:\n            system.close(self._descriptor)\n"
_IS_OVER = "            if self.state is None or self.state.completed_at is not None:\n"
_MAKES_GROUP = "    is_made = context.resctrl.make(path)\n"
_COMMITS = "cannot leak.\n    locked.commit(after)\n"
_WRITES_LINES = "        after = ending.write_owed(context.run, after)\n"
_WRITES_LATER = "        owing, after = after, replace(after, owed=None)\n"
_WRITES_NOW = "    if 'owing' in locals():\n        ending.write_owed(context.run, owing)\n"
_SAVES = "    is_forgotten = kept is None or not _save(context, locked, kept, removed)\n"
MUTANTS = {
    "M1": BrokenRule(
        "a lock counts whose file is unlinked", "c1 | p1 | c2 | c3",
        {"if is_ours and system.count_links(descriptor) > 0:": "if is_ours:"},
    ),
    "M2": BrokenRule(
        "the lock is given back before its file is unlinked", "snapshot_ttl=0; c1 | p1 | c2 | c3",
        {
            _IS_OVER: "            system.close(self._descriptor)\n" + _IS_OVER,
            _GIVES_LOCK_BACK: "        finally:\n            pass\n",
        },
    ),
    "M3": BrokenRule("the lock is not taken", "| c1 | c2", {_TAKES_LOCK: "True\n"}),
    "M4": _skip_second_look("a member is dead", "drop", "c1 d1 | c1 | r"),
    "M5": _skip_second_look("a key has members", "end", "linger=60; c1 p1 t100 | c2 | r"),
    "M6": BrokenRule(
        "a group is removed as an orphan without a look at its record",
        "linger=60; c1 d1 k1 | c2 p2 | r",
        {"if _is_on(path, locked.state) or context": "if context"},
    ),
    "M7": _skip_second_look("a container in the index is a member", "forget", "| c1 | r"),
    "M8": BrokenRule(
        "a member is recorded after its group is made", "c1 | c2 | r",
        {_COMMITS: "cannot leak.\n", _MAKES_GROUP: _MAKES_GROUP + "    locked.commit(after)\n"},
    ),
    "M9": BrokenRule(
        "a group that another tool removed is not made again", "| c1 | x1",
        {"return attempt.returns <= _MOST_RETURNS": "return False"},
    ),
    "M10": BrokenRule(
        "poststop takes out a member that lives", "c1 d1 | c1 | l1",
        {"leaving = [] if lives else [container]": "leaving = [container]"},
    ),
    "M11": BrokenRule(
        "what a key used before it came back counts again", "history=1; c1 | p1 c2 p2 | r",
        {"(-1, [state.returned.use]": "(0, [state.returned.use]"},
    ),
    "M12": BrokenRule(
        "the line of a key is written after its record", "history=1; c1 | p1 c2 p2 | r",
        {_WRITES_LINES: _WRITES_LATER, _SAVES: _SAVES + _WRITES_NOW},
    ),
    "M13": BrokenRule(
        "a container that another tool has taken is moved back",
        "shows_groups=0; c1 c2 o1 e1 | r | w1 | p2",
        {"is_taken = path is not None and": "is_taken = False and"},
    ),
    "M14": BrokenRule(
        "a key is forgotten with the lines that it owes",
        "history=1; c1 p1 t1 h c2 p2 t400 | R | Y R",
        {"    if state.owed is None:\n        return None": "    if True:\n        return None"},
    ),
    "M15": BrokenRule(
        "the file of a line is not on the record of its key", "history=1; c1 c9 | d1 R | d9 R",
        {'("" if begins else state.history_file) or container.history_file': '""'},
    ),
    "M16": BrokenRule(
        "no reconcile ends a release that was killed", "j21 | q | r",
        {"if state.stopped and any(": "if False and any("},
    ),
    "M17": BrokenRule(
        "a task that outlived the last poststop keeps a key that has lingered",
        "linger=60; c1 f1 | p1 | r t100 r",
        {"else state.stopped and members == state.members": "else False"},
    ),
    "M18": BrokenRule(
        "the last poststop counts as come where reconcile has dropped a container",
        "linger=60; c1 f1 | d1 | r t100 r",
        {"else state.stopped and members == state.members": "else True"},
    ),
    "M19": BrokenRule(
        "two jobs may have one process", "B21 | J21 | J21@other | r",
        {'    lock = f"{name:-<{LONGEST_KEY + 1}}"': '    lock = f"{id(context)}"'},
    ),
    "M20": BrokenRule(
        "a process may be a member of two keys", "rmids=2; c1 c5 c9 p5 B21^9 J21 | p1 | r",
        {"if identity.is_member(container, member):\n                raise":
         "if False:\n                raise"},
    ),
    "M21": BrokenRule(
        "a call that fails takes out what was in the group before",
        "j21 F22^21 B23 | J22^23 | d23 | r",
        {"if before is not None and before.had_inside(tid, process, present):": "if False:"},
    ),
}  # fmt: skip


def break_source(name: str) -> tuple[Path, str]:
    """Return the file that a mutant breaks, and the broken source."""
    changes = MUTANTS[name].changes
    sources = {path: path.read_text(encoding="utf-8") for path in (ROOT / "hook").rglob("*.py")}
    paths = [path for path, text in sources.items() if all(text.count(old) == 1 for old in changes)]
    if len(paths) != 1:
        raise ValueError(f"{name}: {len(paths)} modules have {list(changes)!r}")
    source = sources[paths[0]]
    for old, new in changes.items():
        source = source.replace(old, new)
    return paths[0], source


def apply(name: str) -> None:
    """Break the program, of which nothing that is broken is imported yet."""
    path, source = break_source(name)
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    package, _, last = name.rpartition(".")
    spec = importlib.util.find_spec(name)
    assert spec is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    exec(compile(source, path, "exec"), module.__dict__)  # noqa: S102  our own sources
    setattr(sys.modules[package], last, module)
