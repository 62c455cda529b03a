"""The fault campaign: everything that a hook relies on fails, everywhere, and what must hold does.

    python3 build.py faults [PART ...] [--markdown] [--most N] [--only CASE]

Parts, each a module here: `syscalls` (every system call fails), `kills` (killed at every one that has an effect, and
again while that is repaired), `installs` (install and uninstall, killed like that), `broken` (full, read-only, torn,
hidden), `crowds` (many at once): these work on the model of resctrl, with the shipped .pyz, and what must hold is in
tests/support/oracle.py, for all of them the same (but for `installs`, which have nothing to do with resctrl).
`fuzz` (a million hostile inputs to all that parses, and to the whole hook), `soak` (a hundred thousand pods come and go
on one node, and two thousand on the kernel's own resctrl): these look after themselves. `coverage` (each branch of the
hook path is run by a test) and `mutants` (each change of it fails one) are about the tests.
"""
