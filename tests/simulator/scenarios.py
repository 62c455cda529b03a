# SPDX-License-Identifier: Apache-2.0
"""What begins beside what: `[OPTION=VALUE ...;] STEPS before | STEPS | STEPS ...`, the last ones each in a lane.

Steps: tests.simulator.node.STEPS. `rmids`, `limbo` and `shows_groups` are of the kernel, `history=1` means
oracle.HISTORY, others are options of hooks and reconcile.
"""

from __future__ import annotations

from typing import Any

SCENARIOS = (
    # lives of one pod
    "| c1",
    "c1 | p1",
    "| c1 | c2",
    "c1 | c2 | p1",
    "c1 c2 | p1 | p2",
    "c1 | p1 | c2 | c3",
    "snapshot_ttl=0; c1 | p1 | c2 | c3",
    "c1 c2 | p1 | p2 | c3",
    "snapshot_ttl=0; c1 | p1 | c2 | r",
    # a hook that failed is called again, without a reconcile in between
    "| c1 a1 p1",
    "c2 | c1 a1 p1",
    "c1 | p1 l1 c2",
    "c1 c2 | p1 l1 | p2",
    "linger=60; c1 p1 | c2 a2",
    "linger=60; c1 | p1 c2 a2",
    "rmids=1; c1 d1 | c5 a5 p5",
    "c9 | c9 p9",
    # beside reconcile
    "| c1 | r",
    "| c1 | c2 | r",
    "c1 | p1 | r",
    "c1 | r | r",
    "c1 | c2 | p1 | r",
    "c1 c2 | p1 p2 | r | c3",
    "c1 p1 | c2 | r",
    "c1 d1 | c2 | r",
    "c1 c2 d1 d2 | p1 | r | r",
    # restarts under the same ID, late and lost poststops, pids that come again
    "c1 d1 | c1 | l1",
    "c1 d1 | c1 | l1 | r",
    "c1 | d1 c1 | r",
    "c1 d1 | c2^1 | r",
    "c1 d1 | c5^1 | r",
    "c1 d1 | c9^1 | r | l1",
    "c1 | c1 | r",
    "c1 c1 | l1 | p1 | r",
    # lingering
    "linger=60; c1 | p1 | c2",
    "linger=60; c1 p1 | c2 | r",
    "linger=60; c1 p1 t100 | c2 | r",
    "linger=60; c1 p1 t100 | c2 | r | c5",
    "linger=60; c1 p1 D1 | r | c2",
    "linger=60; c1 | p1 D1 | r",
    "linger=60; c1 d1 k1 | c2 p2 | r",
    # two ctrl_groups
    "c1 | c2@gold | p1",
    "c1 c2@gold | p1 | p2 | r",
    "c1 c2@gold | p2 | c3@gold | r",
    "| c1 | m1@gold | r",
    "c1 | m1@gold | r | c2",
    # few RMIDs: reclaim
    "rmids=1; c1 d1 | c5",
    "rmids=1; c1 d1 | c5 | r",
    "rmids=1; c1 d1 | c5 | c2",
    "rmids=1 linger=60; c1 p1 | c5 | c2",
    "rmids=2 linger=60; c1 p1 c5 p5 | c9 | c2 | r",
    "rmids=1 limbo=1; c1 | p1 | c5",
    "rmids=1 limbo=1; c1 d1 | c5 | l1 | r",
    "rmids=1; c1 | c5 | p1 r",
    # damage: records, index, views
    "c1 u1 | c2 | r",
    "c1 u1 | p1 | r",
    "c1 | u1 r | c2",
    "c1 k1 | c2 | r",
    "c1 k1 | p1 | r | r",
    "c1 c2@gold u1 | r | p2",
    "c1 i1 | r | c2",
    "c1 i1 | p1 | r",
    "c1 v1 | c2 | r",
    # other tools
    "c1 | c2 | x1",
    "| c1 | g | r",
    "| c1 | x1 | r",
    "c1 | X r | c2",
    "c1 p1 | c2 | g",
    "c1 | p1 | X | r",
    "c1 s1 | r | c2",
    # another tool takes a container to its own group, and may give it back
    "c1 | o1 | r",
    "c1 o1 | r | r | c2",
    "c1 o1 e1 | r | w1",
    "c1 o1 | x1 r | p1",
    "c1 c2 o1 | p2 | p1 | r",
    "c1 o1@gold | r | c2@gold",
    "c1 o1 r | b1 | r",
    "shows_groups=0; c1 | o1 | r",
    "shows_groups=0; c1 c2 o1 e1 | r | w1 | p2",
    "shows_groups=0; c1 o1@gold | x1 r | r",
    "shows_groups=0; c1 o1 r | b1 | r",
    # exec, and what outlives an init
    "c1 | w1 | r",
    "c1 | e1 r | w1",
    "c1 | w1 | p1",
    "c1 | w1 | x1 r",
    "c1 m1@gold | y1 | r",
    "c1 c2 m1@gold | y1 | p2 | r",
    "c1 | m1@gold y1 | c2@gold",
    "shows_groups=0; c1 m1@gold | y1 | r",
    "rmids=2; c1 m1@gold | y1 | c5 | r",
    "c1 f1 | p1 | r",
    "c1 f1 d1 | r | c2",
    # what keys used
    "history=1; c1 | p1 c2 p2 | r",
    "history=1; c1 c2 | p1 | p2 | c3 p3",
    "history=1 snapshot_ttl=0; c1 | p1 | c2 p2 | r",
    "history=1 linger=60; c1 | p1 c2 | r p2 t100 r",
    "history=1 rmids=1 linger=60; c1 p1 | c5 p5 | c2 p2",
    "history=1; c9 | d9 r | c9 p9",
    "history=1; c1 | x1 r | p1",
    "history=1; c1 | m1@gold r | p1",
    # the same without the option, and what cannot be written for a while
    "history=1; c1 c9 | d1 R | d9 R",
    "history=1 linger=60; c9 d9 R t100 | R | c9 p9",
    "history=1; c1 h | p1 c2 p2 | R",
    "history=1; c1 H | p1 | c2 p2 Y R",
    "history=1; c9 h p9 t1 c9 | p9 c9 | Y R",
    "history=1 snapshot_ttl=0; c1 h | p1 | c2 p2 Y | R",
    "history=1 linger=60; c1 H | p1 t100 r | Y R",
    "history=1 rmids=1 linger=60; c1 p1 h | c5 p5 | R",
    "history=1; c1 p1 t1 h c2 p2 t400 | R | Y R",
    "history=1; c9 h p9 t400 R t1 | c9 p9 | R",
    # the hook is taken off
    "c1 c2 c9 | U",
    "linger=60; c1 p1 c5 | U | p5",
    "c1 | c2 | U",
    "c1 c2@gold | p1 | U",
    "c1 u1 | U | p1",
    "history=1; c1 c5 | U | p1",
    "history=1 linger=60; c9 p9 c1 | U",
    # jobs
    "| n21 | r",
    "| n21 q | r",
    "| j21 | j22 | r",
    "j21 | q | r",
    "j21 | q j22 | r",
    "j21 j22 | d21 d22 | q | r",
    "n21 d21 | n22 | r",
    "n21 | d21 r | q",
    "linger=60; j21 | q j22 q | r",
    "linger=60; n21 d21 r | n22 | r",
    "rmids=1; n21 d21 | c9 | r",
    "rmids=1; c9 d9 | n21 | r",
    "j21@gold | q | r",
    "j21 | x21 | r",
    "j21 f21 d21 | r | q",
    "j21 u21 | r | j22",
    "j21 k21 | r | q",
    "history=1; n21 | d21 r | n22 q",
    "history=1; j21 | q j22 q | R",
    "j21 c9 | U | q",
    "shows_groups=0; j21 | j22 | q r",
    # a process that could not join is let in later, and of two jobs it joins one
    "B21 | J21 | J21@other | r",
    "B21 | J21 | J21 | r",
    "B21 B22 | J21 J22@other | J21@other | q r",
    "rmids=1; c9 | n21 | d9 r",
    "rmids=1; c9 j21 | d9 r | J21 | q",
    "rmids=1; c9 j21 | J21@other | d9 r | r",
    "history=1 rmids=1; c9 n21 | d9 r | d21 r",
    "rmids=1; c9 j21 d21 | r | n22",
    # a pid is a process's and its start time's: another one has the number by the time of the put
    "c1 m1@gold | r | z1",
    "c1 m1@gold | y1 | z1",
    "shows_groups=0; j21 x21 | r | z21",
    # keys beside each other
    "| c1 | c5 | c9 | r",
    "c1 c5 c9 | p1 | p5 | p9 | r",
)


def read_scenario(text: str) -> tuple[dict[str, Any], str, list[str]]:
    """Its options, the steps before, and those of each lane."""
    head, _, steps = text.rpartition(";")
    before, *lanes = steps.split("|")
    return {name: int(value) for name, _, value in (word.partition("=") for word in head.split())}, before, lanes
