# SPDX-License-Identifier: Apache-2.0
"""How the .pyz is made of the sources."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMPILED = {
    "hook/base/models.py": "hook/base/models_compiled.py",
    "hook/base/node_models.py": "hook/base/node_models_compiled.py",
    "hook/cli/options.py": "hook/cli/options_compiled.py",
}
"""The modules of pydantic models, and what takes the place of each in the .pyz."""


class BuildError(Exception):
    """The build failed; the message says why."""
