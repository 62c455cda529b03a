# SPDX-License-Identifier: Apache-2.0
"""One target under atheris, until so many inputs were tried or one fails: started by fuzz.py.

    python -m tests.faults.fuzzing.atheris_target TARGET ARGUMENTS-OF-LIBFUZZER... CORPUS

Both forms of the program are imported under the eyes of the fuzzer, which then knows how far each input led.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
import tempfile
from pathlib import Path
from random import Random
from typing import NoReturn

from tests.faults.fuzzing import inputs, targets


def main(name: str, arguments: list[str]) -> NoReturn:
    atheris = importlib.import_module("atheris")
    with tempfile.TemporaryDirectory() as directory, atheris.instrument_imports(include=["hook"]):
        forms = targets.both_forms(Path(directory))
    for seed in inputs.seeds(name, forms[0]):
        Path(arguments[-1], hashlib.sha256(seed).hexdigest()).write_bytes(seed)
    target = targets.TARGETS[name]

    def one(data: bytes) -> None:
        targets.check(target, forms, data)

    def mutated(data: bytes, most: int, seed: int) -> bytes:
        dice = Random(seed)
        ours = inputs.havoc(dice)

        def havoc(text: bytes) -> bytes:
            return ours(text) if dice.random() < 0.25 else bytes(atheris.Mutate(text, len(text) + 64))

        return inputs.mutated(bytes(data), most, dice, havoc)

    atheris.Setup([sys.argv[0], *arguments], one, custom_mutator=mutated)
    atheris.Fuzz()
    sys.exit()  # not reached: libFuzzer ends the process


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
