# SPDX-License-Identifier: Apache-2.0
"""What can be changed in a module so that it means something else: by mutmut's operators, and a few more.

    python -m tests.faults.mutation.make_mutants stages/create...    (needs mutmut; the mutants of all, as JSON)

Left out is what no test can see or should look at: annotations, what is for type checkers, and the prose of messages.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import json
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider
from mutmut.mutation.file_mutation import MutationVisitor
from mutmut.mutation.mutators import mutation_operators
from mutmut.mutation.pragma_handling import IgnoredCode

from tests.faults.mutation.mutant import Mutant

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Function(NamedTuple):
    """A function, or a method, by its qualified name and its lines; a module as a whole has no name."""

    name: str
    lines: range


def mutants(module: str, text: str) -> list[Mutant]:
    """All mutants of a module, none twice."""
    wrapper = MetadataWrapper(cst.parse_module(text))
    places = wrapper.resolve(PositionProvider)
    visitor = MutationVisitor([*mutation_operators, *OPERATORS], IgnoredCode(set(), set(), set()))
    tree = wrapper.visit(visitor)
    unseen = {line for node in tree.body if _is_for_type_checkers(node) for line in _lines(places[node])}
    functions = list(_functions(ast.parse(text), range(1, text.count("\n") + 2)))
    found: dict[str, Mutant] = {}
    names: Counter[str] = Counter()
    for mutation in visitor.mutations:
        node = mutation.original_node
        lines = _lines(places[node])
        if unseen.isdisjoint(lines) and not _is_prose(node):
            changed = _replaced(text, tree, places[node], node, mutation.mutated_node)
            digest = hashlib.sha256(f"{module}\n{changed}".encode()).hexdigest()[:16]
            if changed != text and digest not in found:
                function = next(it for it in reversed(functions) if lines.start in it.lines)
                name = f"{module}:{function.name}: {_change(text, changed)}"
                names[name] += 1
                if names[name] > 1:
                    name += f" ({names[name]})"
                found[digest] = Mutant(name, digest, module, list(lines), list(function.lines), changed)
    return list(found.values())


def _replaced(text: str, tree: cst.Module, place: CodeRange, node: cst.CSTNode, other: cst.CSTNode) -> str:
    """The text with one node in the place of another: cut out where that is the node's own text, which is quick."""
    lines = text.splitlines(keepends=True)
    start = sum(map(len, lines[: place.start.line - 1])) + place.start.column
    end = sum(map(len, lines[: place.end.line - 1])) + place.end.column
    if tree.code_for_node(node) == text[start:end]:
        return text[:start] + str(tree.code_for_node(other)) + text[end:]
    return str(tree.deep_replace(node, other).code)


def _change(text: str, changed: str) -> str:
    """The lines that one text has and the other has not, without their indentation."""
    lines = list(difflib.unified_diff(text.splitlines(), changed.splitlines(), n=0, lineterm=""))[2:]
    former, now = ([line[1:].strip() for line in lines if line.startswith(sign)] for sign in "-+")
    return f"{' '.join(former)} => {' '.join(now)}"


def _lines(place: CodeRange) -> range:
    return range(place.start.line, place.end.line + 1)


def _functions(tree: ast.AST, lines: range, prefix: str = "") -> Iterator[_Function]:
    """The module itself, its functions, and the methods of its classes: what is within another one behind it."""
    yield _Function(prefix.rstrip("."), lines)
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            assert node.end_lineno is not None
            yield from _functions(node, range(node.lineno, node.end_lineno + 1), f"{prefix}{node.name}.")


def _is_for_type_checkers(node: cst.CSTNode) -> bool:
    if not isinstance(node, (cst.If, cst.SimpleStatementLine)):
        return False
    text: str = cst.Module([]).code_for_node(node.with_changes(leading_lines=()))
    return text.startswith(("TYPE_CHECKING", "if TYPE_CHECKING"))


def _is_prose(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.SimpleString) and " " in node.value


# --- What mutmut does not do


def _nothing_done(node: cst.Expr) -> Iterator[cst.Pass]:
    if isinstance(node.value, cst.Call):
        yield cst.Pass()


def _nothing_raised(_node: cst.Raise) -> Iterator[cst.Pass]:
    yield cst.Pass()


def _nothing_returned(node: cst.Return) -> Iterator[cst.Return]:
    if node.value is not None and not (isinstance(node.value, cst.Name) and node.value.value == "None"):
        yield node.with_changes(value=cst.Name("None"), whitespace_after_return=cst.SimpleWhitespace(" "))


def _negated(node: cst.If | cst.While | cst.CompIf) -> Iterator[cst.CSTNode]:
    """Of a plain condition, which has no operator to be changed."""
    if isinstance(node.test, (cst.Name, cst.Attribute, cst.Call, cst.Subscript)):
        yield node.with_changes(test=cst.UnaryOperation(cst.Not(), node.test))


OPERATORS = (
    (cst.Expr, _nothing_done),
    (cst.Raise, _nothing_raised),
    (cst.Return, _nothing_returned),
    (cst.If, _negated),
    (cst.While, _negated),
    (cst.CompIf, _negated),
)


if __name__ == "__main__":
    given = {name: Path("hook", f"{name}.py").read_text(encoding="utf-8") for name in sys.argv[1:]}
    print(json.dumps([it for name, text in given.items() for it in mutants(name, text)]))
