# SPDX-License-Identifier: Apache-2.0
"""Whole hooks, reconcile and watch beside each other in one process,
at every system call as a seed decides.

    python3 -m tests.simulator --help

`machine` replaces posix, fcntl, select and the clocks below hook.system: pyfakefs' file system, and
the kernel's own files by `kernel`. At each call `schedule` may let another process go on, kill this
one, let the call fail, or time pass. `oracle` is asked after each call that changed something;
`scenarios` are what begins beside what.
"""
