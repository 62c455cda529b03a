"""For `python3 -m hook` in the source tree. The .pyz has one that goes the way of its first line (build.py)."""

import sys

sys.argv[:0] = ["-c"]

from hook.stages import start  # noqa: E402, F401  importing it is running it
