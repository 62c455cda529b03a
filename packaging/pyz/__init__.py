# SPDX-License-Identifier: Apache-2.0
"""How the .pyz is made of the sources."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODELS = "hook/base/models.py"
COMPILED = "hook/base/models_compiled.py"
"""What takes the place of MODELS in the .pyz."""


class BuildError(Exception):
    """The build failed; the message says why."""
