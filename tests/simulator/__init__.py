# SPDX-License-Identifier: Apache-2.0
"""Whole hooks, reconcile and watch beside each other in one process, at every system call as a seed decides.

    python3 -m tests.simulator --help

`machine` stands for posix, fcntl, select and the clocks below hook.base.system: pyfakefs' file system, and the kernel's
own files by `kernel`. At each call `schedule` may let another process go on, kill this one, let the call fail, or time
pass. `oracle` is asked after each call that changed something; `scenarios` are what begins beside what.
"""

from __future__ import annotations

import functools
import importlib
import sys
from contextlib import nullcontext


def prepare(mutant: str | None = None) -> None:
    """Let the program have its compiled models, as in the .pyz, and be broken as a mutant is. Before it is imported."""
    # Before Python 3.12 a cached_property is computed under a lock: one who has it would never get the baton again.
    vars(functools)["RLock"] = nullcontext
    base = importlib.import_module("hook.base")
    for name in ("models", "node_models"):
        compiled = sys.modules[f"hook.base.{name}"] = importlib.import_module(f"hook.base.{name}_compiled")
        setattr(base, name, compiled)
    if mutant is not None:
        importlib.import_module("tests.simulator.mutants").apply(mutant)
