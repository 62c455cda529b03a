"""The fault campaign: everything that a hook relies on fails, everywhere, and what must hold does.

    python3 build.py faults [PART ...] [--markdown] [--most N] [--only CASE]

Parts, each a module here: `syscalls` (every system call fails), `kills` (killed at every one that has an effect, and
again while that is repaired), `broken` (full, read-only, torn, hidden), `crowds` (many at once). All of them work on
the model of resctrl, with the shipped .pyz; what must hold is in tests/support/oracle.py, for all of them the same.
"""
