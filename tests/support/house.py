# SPDX-License-Identifier: Apache-2.0
"""How large the program is.

    python3 -m tests.support.house [--files]

A line of code has a token that is neither comment nor docstring. `--files`: by file, too.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_NO_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER),
}
_Function = (ast.FunctionDef, ast.AsyncFunctionDef)


def sources(top: str) -> dict[str, str]:
    """The Python files below a directory of the project, by path."""
    return {
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
        for path in sorted((ROOT / top).rglob("*.py"))
    }


def count_code(text: str) -> int:
    """Count the lines of code."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        for statement in (
            getattr(node, "body", [])
            if isinstance(node, (ast.Module, ast.ClassDef, *_Function))
            else []
        ):
            if _is_text(statement):
                docstrings.update(
                    range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
                )
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


def find_same_classes(texts: dict[str, str]) -> dict[str, list[str]]:
    """Find class names that more than one file has."""
    places = defaultdict(list)
    for path, text in texts.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(path)
    return {name: paths for name, paths in places.items() if len(paths) > 1}


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(
        getattr(statement.value, "value", None), str
    )


def _by_package(paths: Iterable[str]) -> Iterator[str]:
    return (path.split("/")[1] if path.count("/") > 1 else "." for path in paths)


def main(arguments: Sequence[str]) -> int:
    hook = sources("hook")
    lines = {path: count_code(text) for path, text in hook.items()}
    if "--files" in arguments:
        print(*(f"{count:6} {path}" for path, count in lines.items()), sep="\n")
    files, code = Counter(_by_package(lines)), Counter[str]()
    for package, count in zip(_by_package(lines), lines.values()):
        code[package] += count
    for package in sorted(files):
        print(f"{package:10} {code[package]:6} lines of code {files[package]:4} files")
    print(f"{'hook':10} {sum(code.values()):6} lines of code {len(hook):4} files")
    print(f"{'tests':10} {sum(text.count(chr(10)) for text in sources('tests').values()):6} lines")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
