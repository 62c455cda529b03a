# SPDX-License-Identifier: Apache-2.0
"""Makes the .pyz from the sources: `archive` the file,
`bytecode` and `compile_models` parts of its content.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMPILED = {
    "hook/models.py": "hook/models_compiled.py",
    "hook/node/models.py": "hook/node/models_compiled.py",
}
"""The modules of pydantic models, and the compiled module that replaces each in the .pyz."""
SCHEMA = "docs/history.schema.json"
"""The JSON Schema of a line of the history, which is made of its model."""


class BuildError(Exception):
    """The build failed; the message says why."""
