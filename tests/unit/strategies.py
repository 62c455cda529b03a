# SPDX-License-Identifier: Apache-2.0
"""Documents for the models, made from their core schemas,
so that new models and fields are covered too.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from typing import Any

from hypothesis import Phase, find, settings
from hypothesis import strategies as st

Node = dict[str, Any]

_ID = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.+,-]{0,20}", fullmatch=True)
_PATH = st.from_regex(r"(/[a-z0-9.]{0,3}[a-z0-9]){1,4}", fullmatch=True)
# What the functions of hook/names.py accept: text alone would hardly ever be a path. A
# function without an entry gets any text, and the test that valid documents are accepted says
# so if that is not enough.
ACCEPTED: Mapping[str, st.SearchStrategy[str]] = {
    "check_path": _PATH,
    "check_container_id": _ID,
    "check_ctrl_group": st.just("/") | _ID,
    "check_directory": _PATH,
    "check_file": st.just("") | _PATH,
    "check_group_prefix": _ID,
    "check_label": st.from_regex(r"[A-Za-z][A-Za-z0-9_]{0,9}", fullmatch=True),
    "check_node": st.sampled_from(["", "n1", "a b"]),
    "check_member": _ID | _ID.map("{}@4711-99".format),
    "check_mon_group": st.tuples(_PATH, _ID).map(lambda parts: f"{parts[0]}/mon_groups/{parts[1]}"),
}
_SURROGATES = st.sampled_from(["\ud800", "a\udfff", "\ud83d\ude00", "\udcff/x"])
_TEXT = st.text(max_size=8) | _SURROGATES


def valid(model: type[Any], *, is_full: bool = False) -> st.SearchStrategy[Any]:
    """Documents that the model accepts.

    If they are full, every field is there, and nothing is None or empty.
    """
    schema = model.__pydantic_core_schema__
    refs = {
        node["ref"]: node for node in _walk(schema) if node.get("type") == "model" and "ref" in node
    }

    def of(node: Node) -> st.SearchStrategy[Any]:
        kind = node["type"]
        if kind in ("default", "definitions", "model"):
            return of(node["schema"])
        if kind == "definition-ref":
            return of(refs[node["schema_ref"]])
        if kind == "nullable":
            return of(node["schema"]) if is_full else st.none() | of(node["schema"])
        if kind == "function-after":
            return ACCEPTED.get(node["function"]["function"].__name__, _TEXT)
        if kind == "list":
            return st.lists(of(node["items_schema"]), min_size=int(is_full), max_size=3)
        if kind == "dict":
            keys, values = of(node["keys_schema"]), of(node["values_schema"])
            return st.dictionaries(keys, values, min_size=int(is_full), max_size=3)
        if kind == "model-fields":
            by_alias = {
                alias: field["schema"]
                for name, field in node["fields"].items()
                for alias in _list_aliases(name, field)
            }
            required = {
                name: of(schema)
                for name, schema in by_alias.items()
                if is_full or schema["type"] != "default"
            }
            optional = {
                name: of(schema) for name, schema in by_alias.items() if name not in required
            }
            return st.fixed_dictionaries(required, optional=optional)
        return _valid_scalar(node)

    return of(schema)


def _list_aliases(name: str, field: Node) -> list[str]:
    """The keys of a field in a document: its own, and that of records of an earlier version."""
    alias = field.get("validation_alias", name)
    return [alias] if isinstance(alias, str) else [path for (path,) in alias]


def _valid_scalar(node: Node) -> st.SearchStrategy[Any]:
    kind, ge, le = node["type"], node.get("ge"), node.get("le")
    if kind == "str":
        return _TEXT
    if kind == "bool":
        return st.booleans()
    if kind == "literal":
        return st.sampled_from(node["expected"])
    whole = st.integers(
        None if ge is None else math.ceil(ge), None if le is None else math.floor(le)
    )
    bounds = [st.just(bound) for bound in (ge, le) if bound is not None]
    if kind == "float":
        return st.one_of(
            *bounds, st.floats(ge, le), whole.filter(lambda number: abs(number) < 2**1000)
        )
    return st.one_of(*bounds, whole)


def nearly_valid(
    model: type[Any], base: st.SearchStrategy[Any] | None = None
) -> st.SearchStrategy[Any]:
    """Valid documents, or those of `base`, after one to three mutations."""
    strange = st.sampled_from(strange_values(model)).map(copy.deepcopy) | _SURROGATES
    return _mutated(valid(model) if base is None else base, strange)


@st.composite
def _mutated(draw: st.DrawFn, base: st.SearchStrategy[Any], strange: st.SearchStrategy[Any]) -> Any:  # noqa: ANN401
    holder = [copy.deepcopy(draw(base))]
    for _ in range(draw(st.integers(1, 3))):
        container, key = draw(st.sampled_from(list(places(holder))))
        value = container[key]
        what = draw(st.sampled_from(["replace", "drop", "add", "rename"]))
        if what == "drop" and container is not holder:
            del container[key]
        elif what == "add" and isinstance(value, dict):
            value[draw(_TEXT)] = draw(strange)
        elif what == "rename" and isinstance(container, dict):
            container[draw(_TEXT)] = container.pop(key)
        else:
            container[key] = draw(strange)
    return holder[0]


def substitutions(model: type[Any]) -> Iterator[Any]:
    """One full document with one mutation, for every place in it and every
    mutation that needs no chance.
    """
    # The first one generated is the simplest.
    quick = settings(database=None, phases=[Phase.generate])
    document = find(valid(model, is_full=True), lambda _: True, settings=quick)
    strange = strange_values(model)

    def copied(number: int) -> tuple[list[Any], Any, Any]:
        """Another copy of the document, and its place of this number, as a container and a key."""
        holder = [copy.deepcopy(document)]
        return holder, *list(places(holder))[number]

    for number in range(len(list(places([document])))):
        for value in strange:
            holder, container, key = copied(number)
            container[key] = copy.deepcopy(value)
            yield holder[0]
        if number:  # the first one is the document itself
            holder, container, key = copied(number)
            del container[key]
            yield holder[0]
        # An alias is exact, and a dict's key is any text.
        for name in ("", "other", "\ud800", "a/b"):
            holder, container, key = copied(number)
            if isinstance(container, dict):
                container[name] = container.pop(key)
                yield holder[0]


def strange_values(model: type[Any]) -> list[Any]:
    """Scalars and small trees that are often wrong, and sometimes right."""
    nodes = list(_walk(model.__pydantic_core_schema__))
    bounds = {
        node[key]
        for node in nodes
        for key in ("ge", "le")
        if isinstance(node.get(key), (int, float))
    }
    near = [number for bound in sorted(bounds) for number in _around(bound)]
    some = [None, True, False, 0, 1, -1, 2**53 + 1, 10**400, -(10**400)]
    floats = [0.0, -0.0, 1.0, 0.5, math.nan, math.inf, -math.inf, 5e-324, 1e308]
    texts = [
        "",
        "0",
        "1",
        "/",
        ".",
        "..",
        "/a/../b",
        "a" * 201,
        "é",
        "\0",
        "/x/mon_groups/oci-1",
        "pod",
        "\ud800",
    ]
    trees: list[Any] = [[], {}, [[]], [None], {"": None}, {"\ud800": 1}, {"a": "b"}, ["a"]]
    literals = sorted({text for node in nodes for text in node.get("expected", ())})
    return [*some, *floats, *near, *texts, *trees, *literals]


def _around(bound: float) -> list[float]:
    nearby = [bound - 1, bound, bound + 1]
    return [
        *nearby,
        *map(float, nearby),
        math.nextafter(bound, math.inf),
        math.nextafter(bound, -math.inf),
    ]


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
