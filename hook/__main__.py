# SPDX-License-Identifier: Apache-2.0
"""Starts `python3 -m hook` in the source tree. The .pyz has another one, made by packaging/pyz/archive.py."""

import sys

from hook import entry

sys.argv[:0] = ["-c"]
entry.start()
