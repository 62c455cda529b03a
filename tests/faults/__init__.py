# SPDX-License-Identifier: Apache-2.0
"""The fault campaign: everything that a hook relies on fails, everywhere, and what must hold does.

    python3 build.py faults [PART ...] [--markdown] [--most N] [--only CASE]

The parts, by the package or the module that they are in:
  injection  `syscalls` (those that Python makes around ours fail), `installs` (install and uninstall, killed at
             each call that has an effect), `limits` (few descriptors, little memory)
  simulated  `simulate` (four hundred thousand schedules of whole hooks, reconcile and watch in one process, and broken
             programs, which it has to notice)
  soak       `soak` (a hundred thousand pods on one node)
  fuzz       `fuzz` (a hundred thousand hostile inputs to whole hooks)
  mutation   `coverage` (each branch of the hook path is run by a test), `mutants` (each change of it fails one)
Injection works on the model of resctrl, with the shipped .pyz; what must hold is in scene.py,
the same for all but `installs`, which have nothing to do with resctrl. The others look after themselves; coverage and
mutants are about the tests.
"""
