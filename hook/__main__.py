# SPDX-License-Identifier: Apache-2.0
"""For `python3 -m hook` in the source tree. The .pyz has one that goes the way of its first line (packaging/pyz)."""

import sys

from hook.stages import entry

sys.argv[:0] = ["-c"]
entry.start()
