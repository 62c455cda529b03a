# SPDX-License-Identifier: Apache-2.0
"""The tests import the packages of packaging/, as build.py does: how the program is made,
and what fetches things.
"""

import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "packaging"))
