# SPDX-License-Identifier: Apache-2.0
"""What can be changed in a module so that it means something else: by mutmut's operators, and a few more.

    python -m tests.faults.mutation.mutants_of create...    (needs mutmut; module, change and text, as JSON)

Left out is what no test can see or should look at: annotations, what is for type checkers, and the prose of messages.
"""

from __future__ import annotations

import difflib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider
from mutmut.mutation.file_mutation import MutationVisitor
from mutmut.mutation.mutators import mutation_operators
from mutmut.mutation.pragma_handling import IgnoredCode

if TYPE_CHECKING:
    from collections.abc import Iterator


def mutants(text: str) -> dict[str, str]:
    """All mutants of a module, none twice: the changed texts, by the lines that are changed."""
    wrapper = MetadataWrapper(cst.parse_module(text))
    places = wrapper.resolve(PositionProvider)
    visitor = MutationVisitor([*mutation_operators, *OPERATORS], IgnoredCode(set(), set(), set()))
    tree = wrapper.visit(visitor)
    unseen = [places[node] for node in tree.body if _is_for_type_checkers(node)]
    found: dict[str, str] = {}
    seen = {text}
    for mutation in visitor.mutations:
        line = places[mutation.original_node].start.line
        if _is_prose(mutation.original_node) or any(it.start.line <= line <= it.end.line for it in unseen):
            continue
        changed = _replaced(text, tree, places[mutation.original_node], mutation.original_node, mutation.mutated_node)
        if changed not in seen:
            seen.add(changed)
            found[f"{line}: {_change(text, changed)}"] = changed
    return found


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
    texts = {name: Path("hook", f"{name}.py").read_text(encoding="utf-8") for name in sys.argv[1:]}
    print(json.dumps([(name, *it) for name, text in texts.items() for it in mutants(text).items()]))
