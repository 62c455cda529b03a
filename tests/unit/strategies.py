# SPDX-License-Identifier: Apache-2.0
"""Documents for the models, made from their core schemas, so that new models and fields are covered too."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from hypothesis import Phase, find, settings
from hypothesis import strategies as st

Node = dict[str, Any]

_ID = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.+,-]{0,20}", fullmatch=True)
_PATH = st.from_regex(r"(/[a-z0-9.]{0,3}[a-z0-9]){1,4}", fullmatch=True)
# What the functions of hook/names.py accept: text alone would hardly ever be a path. A function without an entry
# gets any text, and the test that valid documents are accepted says so if that is not enough.
ACCEPTED: Mapping[str, st.SearchStrategy[str]] = {
    "path": _PATH,
    "container_id": _ID,
    "ctrl_group": st.just("/") | _ID,
    "directory": _PATH,
    "file": st.just("") | _PATH,
    "group_prefix": _ID,
    "member": _ID | _ID.map("{}@4711-99".format),
    "mon_group": st.tuples(_PATH, _ID).map(lambda parts: f"{parts[0]}/mon_groups/{parts[1]}"),
}
_SURROGATES = st.sampled_from(["\ud800", "a\udfff", "\ud83d\ude00", "\udcff/x"])
_TEXT = st.text(max_size=8) | _SURROGATES


def valid(model: type[Any]) -> st.SearchStrategy[Any]:
    """Documents that the model accepts."""
    return _Valid.of(model).node(model.__pydantic_core_schema__)


def full(model: type[Any]) -> Any:  # noqa: ANN401
    """A small document that the model accepts, with all its fields and something in every list and dict."""
    strategy = _Valid.of(model)._replace(whole=True).node(model.__pydantic_core_schema__)
    quick = settings(database=None, phases=[Phase.generate])  # the first one generated is the simplest
    return find(strategy, lambda _: True, settings=quick)


class _Valid(NamedTuple):
    """Makes strategies of a core schema's nodes."""

    refs: Mapping[str, Node]
    whole: bool = False  # every field is there, nothing is None or empty

    @classmethod
    def of(cls, model: type[Any]) -> _Valid:
        return cls(_models_in(model.__pydantic_core_schema__))

    def node(self, node: Node) -> st.SearchStrategy[Any]:
        kind, least = node["type"], int(self.whole)
        if kind in ("default", "definitions", "model"):
            return self.node(node["schema"])
        if kind == "definition-ref":
            return self.node(self.refs[node["schema_ref"]])
        if kind == "nullable":
            inner = self.node(node["schema"])
            return inner if self.whole and not inner.is_empty else st.none() | inner
        if kind == "function-after":
            return ACCEPTED.get(node["function"]["function"].__name__, _TEXT)
        if kind == "list":
            return st.lists(self.node(node["items_schema"]), min_size=least, max_size=3)
        if kind == "dict":
            keys, values = self.node(node["keys_schema"]), self.node(node["values_schema"])
            return st.dictionaries(keys, values, min_size=least, max_size=3)
        if kind == "model-fields":
            return self._of_fields(node["fields"])
        return _valid_scalar(node)

    def _of_fields(self, fields: Node) -> st.SearchStrategy[Any]:
        by_alias = {field.get("validation_alias", name): field["schema"] for name, field in fields.items()}
        made = {alias: self.node(node) for alias, node in by_alias.items()}
        there = [alias for alias, node in by_alias.items() if self.whole or node["type"] != "default"]
        required = {alias: made.pop(alias) for alias in there}
        return st.fixed_dictionaries(required, optional=made)


def _valid_scalar(node: Node) -> st.SearchStrategy[Any]:
    kind, ge, le = node["type"], node.get("ge"), node.get("le")
    if kind == "str":
        return _TEXT
    if kind == "bool":
        return st.booleans()
    if kind == "literal":
        return st.sampled_from(node["expected"])
    if ge is not None and le is not None and ge > le:
        return st.nothing()
    whole = st.integers(None if ge is None else math.ceil(ge), None if le is None else math.floor(le))
    bounds = [st.just(bound) for bound in (ge, le) if bound is not None]
    if kind == "float":
        return st.one_of(*bounds, st.floats(ge, le), whole.filter(lambda number: abs(number) < 2**1000))
    return st.one_of(*bounds, whole)


def nearly_valid(model: type[Any], base: st.SearchStrategy[Any] | None = None) -> st.SearchStrategy[Any]:
    """Valid documents, or those of `base`, after one to three mutations."""
    return _mutated(valid(model) if base is None else base, _strange(model))


def substitutions(model: type[Any]) -> Iterator[Any]:
    """One document with one mutation, for every place in it and every mutation that needs no chance."""
    document = full(model)
    strange = strange_values(model)
    for place in range(len(list(places([document])))):
        for value in strange:
            holder = [copy.deepcopy(document)]
            container, key = list(places(holder))[place]
            container[key] = copy.deepcopy(value)
            yield holder[0]
        if place:  # the first one is the document itself
            holder = [copy.deepcopy(document)]
            container, key = list(places(holder))[place]
            del container[key]
            yield holder[0]
            if isinstance(container, dict):
                yield from _renamed(document, place)


def _renamed(document: Any, place: int) -> Iterator[Any]:  # noqa: ANN401
    """Give the key of this place other names: an alias is exact, and a dict's key is any text."""
    for name in ("", "other", "\ud800", "a/b"):
        holder = [copy.deepcopy(document)]
        container, key = list(places(holder))[place]
        container[name] = container.pop(key)
        yield holder[0]


def strange_values(model: type[Any]) -> list[Any]:
    """Scalars and small trees that are often wrong, and sometimes right."""
    schema = model.__pydantic_core_schema__
    near = [number for bound in sorted(_bounds(schema)) for number in _around(bound)]
    some = [None, True, False, 0, 1, -1, 2**53 + 1, 10**400, -(10**400)]
    floats = [0.0, -0.0, 1.0, 0.5, math.nan, math.inf, -math.inf, 5e-324, 1e308]
    texts = ["", "0", "1", "/", ".", "..", "/a/../b", "a" * 201, "é", "\0", "/x/mon_groups/oci-1", "pod", "\ud800"]
    trees: list[Any] = [[], {}, [[]], [None], {"": None}, {"\ud800": 1}, {"a": "b"}, ["a"]]
    return [*some, *floats, *near, *texts, *trees, *sorted(_literals(schema))]


def _strange(model: type[Any]) -> st.SearchStrategy[Any]:
    return st.sampled_from(strange_values(model)).map(copy.deepcopy) | _SURROGATES


def _models_in(schema: Node) -> dict[str, Node]:
    return {node["ref"]: node for node in _walk(schema) if node.get("type") == "model" and "ref" in node}


def _around(bound: float) -> list[float]:
    nearby = [bound - 1, bound, bound + 1]
    return [*nearby, *map(float, nearby), math.nextafter(bound, math.inf), math.nextafter(bound, -math.inf)]


@st.composite
def _mutated(draw: st.DrawFn, base: st.SearchStrategy[Any], strange: st.SearchStrategy[Any]) -> Any:  # noqa: ANN401
    holder = [copy.deepcopy(draw(base))]
    for _ in range(draw(st.integers(1, 3))):
        container, key = draw(st.sampled_from(list(places(holder))))
        what = draw(st.sampled_from(["replace", "replace", "drop", "add", "rename", "wrap", "text"]))
        value = container[key]
        if what == "drop" and container is not holder:
            del container[key]
        elif what == "add" and isinstance(value, dict):
            value[draw(_TEXT)] = draw(strange)
        elif what == "rename" and isinstance(container, dict):
            container[draw(_TEXT)] = container.pop(key)
        elif what == "wrap":
            container[key] = draw(st.sampled_from([[value], {"a": value}]))
        elif what == "text" and isinstance(value, (int, float)) and abs(value) < 2**64:
            container[key] = str(value)
        else:
            container[key] = draw(strange)
    return holder[0]


def places(container: Any) -> Iterator[tuple[Any, Any]]:  # noqa: ANN401
    """Each place in a tree, as a container and a key."""
    pairs = list(container.items()) if isinstance(container, dict) else list(enumerate(container))
    for key, value in pairs:
        yield container, key
        if isinstance(value, (list, dict)):
            yield from places(value)


def _walk(node: Any) -> Iterator[Node]:  # noqa: ANN401
    """Every dict in a core schema."""
    if isinstance(node, dict):
        yield node
    if isinstance(node, (dict, list)):
        for inner in node.values() if isinstance(node, dict) else node:
            yield from _walk(inner)


def _bounds(schema: Node) -> set[float]:
    return {node[key] for node in _walk(schema) for key in ("ge", "le") if isinstance(node.get(key), (int, float))}


def _literals(schema: Node) -> set[str]:
    return {text for node in _walk(schema) for text in node.get("expected", ())}
