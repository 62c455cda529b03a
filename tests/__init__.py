# SPDX-License-Identifier: Apache-2.0
"""The tests import `pyz`, how the .pyz is made, as build.py does."""

import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "packaging"))
