# SPDX-License-Identifier: Apache-2.0
"""The fault campaign: everything that a hook relies on fails, everywhere, and what must hold does.

    python3 build.py faults [PART ...] [--most N] [--only CASE]

The parts:
  syscalls   each call that Python makes around the hook's own fails with each errno of its manual
             page
  limits     a hook may have few descriptors, or little memory
  run        each call that `run` makes before its command fails, or is its last; it has few
             descriptors, little memory
  sums       reconcile is killed at each call by which it adds up the history
  simulate   four hundred thousand schedules of whole hooks, reconcile and watch in one process, and
             broken programs, which it has to notice
  coverage   each branch of the hook path is run by a test
  mutants    each change of the hook path fails a test; 400 of them, by chance, take two hours
             on two cores
The first four start the shipped file on the model of resctrl: one thing goes wrong, and one repair
puts it right.
"""
