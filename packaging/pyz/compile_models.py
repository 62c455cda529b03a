# SPDX-License-Identifier: Apache-2.0
"""Compiles pydantic models (those of `pyz.COMPILED`) to tables of
hook/validation.py, in plain Python.

It reads pydantic's core schemas. It knows the node types and keys in KNOWN, and refuses all others
by name: an overlooked constraint would be a check that the hook does not make. `_own_class` refuses
everything that pydantic keeps outside the schema (methods, properties, other settings), so that the
schema describes a model completely.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from math import isfinite
from typing import TYPE_CHECKING, Any

from hook import names
from pyz import BuildError

if TYPE_CHECKING:
    from types import ModuleType

KNOWN: dict[str, frozenset[str]] = {
    "bool": frozenset(),
    "default": frozenset({"default", "schema"}),
    "definition-ref": frozenset({"schema_ref"}),
    "definitions": frozenset({"definitions", "schema"}),
    "dict": frozenset({"keys_schema", "values_schema"}),
    "float": frozenset({"ge", "le"}),
    "function-after": frozenset({"function", "schema"}),
    "int": frozenset({"ge", "le"}),
    "list": frozenset({"items_schema"}),
    "literal": frozenset({"expected"}),
    "model": frozenset({"cls", "config", "custom_init", "ref", "root_model", "schema"}),
    "model-field": frozenset({"schema", "serialization_alias", "validation_alias"}),
    "model-fields": frozenset({"computed_fields", "fields", "model_name"}),
    "no-info": frozenset({"function"}),
    "nullable": frozenset({"schema"}),
    "str": frozenset(),
}
Node = dict[str, Any]  # a core schema is plain dicts
# Metadata is for JSON schemas; validation never sees it.
EVERYWHERE = frozenset({"type", "metadata"})
SETTINGS = {"strict": True, "frozen": True, "extra": "ignore"}

HEAD = '''\
# SPDX-License-Identifier: Apache-2.0
"""The models of {path} in plain Python, for where pydantic cannot be.

This takes their place in the .pyz. `python3 build.py compile` makes it from the core schemas that
pydantic itself executes: change those, not this. The tests prove both equal in what they accept, in
the values, and in the place of the first error.
"""

# ruff: noqa: E501, I001
# fmt: off
from __future__ import annotations
'''
CHECKS = ("dict", "float", "int", "list", "literal", "model", "named", "nullable")
SHARED = frozenset({"ABSENT", "FLAG", "NONE", "TEXT", "TEXTS", "TEXT_OR_NONE", "Form", "Model"})
SHARED |= {f"check_{name}" for name in CHECKS}
"""The names of hook/validation.py that the tables use."""


class Refused(BuildError):
    """A model has something that the compiler does not know."""

    def __init__(self, where: str, what: str) -> None:
        super().__init__(
            f"{where}: {what}: not known to the compiler of the models "
            "(packaging/pyz/compile_models.py)"
        )


def compile_models(models: ModuleType) -> str:
    """Return the text of the compiled module for a module such as hook/models.py."""
    compilers = [_Compiler(models, cls) for cls in _classes(models)]
    exported = (
        [f"__all__ = {_display(models.__all__, models.__name__)}", ""]
        if hasattr(models, "__all__")
        else []
    )
    body = ["", *exported, *(compiler.form() for compiler in compilers)]
    path = models.__name__.replace(".", "/") + ".py"
    return "\n".join([HEAD.format(path=path), *_imports(body), *body, ""])


def make_schema(model: type[Any]) -> str:
    """Return the JSON Schema (2020-12) of what a model accepts:
    a field with a default may be absent.
    """
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **model.model_json_schema(),
    }
    schema["description"] = schema["description"].partition("\n")[0]
    for properties in (
        schema["properties"],
        *(other["properties"] for other in schema["$defs"].values()),
    ):
        for field in properties.values():
            del field["title"]  # pydantic's, which only repeats the name
    return json.dumps(schema, indent=2) + "\n"


def _imports(body: Iterable[str]) -> list[str]:
    """Return the import lines that the text needs."""
    words = set(re.findall(r"[\w.]+", "\n".join(body)))
    own = ["from hook import names"] if any(word.startswith("names.") for word in words) else []
    return [*own, f"from hook.validation import {', '.join(sorted(words & SHARED))}"]


def _classes(models: ModuleType) -> list[type]:
    """Return the models in the order of their definition.

    Raises Refused if the module exports something else.
    """
    from pydantic import BaseModel  # noqa: PLC0415  building needs no pydantic

    own = [
        cls
        for cls in vars(models).values()
        if isinstance(cls, type) and cls.__module__ == models.__name__
    ]
    known = {cls.__name__ for cls in own if issubclass(cls, BaseModel)}
    for name in [*(cls.__name__ for cls in own), *getattr(models, "__all__", ())]:
        if name not in known:
            raise Refused(f"{models.__name__}.{name}", "something that is no model")
    _own_class(models.Model, BaseModel)
    return [cls for cls in own if cls is not models.Model]


def _own_class(cls: type[Any], base: Any) -> None:  # noqa: ANN401  a class to derive from
    """Refuse everything that a model has besides its fields, since the schema would not show it."""

    # Class statements, since each version of Python leaves other names in one.
    class Bare(base):  # type: ignore[misc]
        """A model without fields."""

        model_config = SETTINGS

    class Filled(base):  # type: ignore[misc]
        """A model with fields."""

        model_config = SETTINGS
        field: int

    strangers = sorted(set(vars(cls)) - set(vars(Bare)) - set(vars(Filled)))
    if strangers:
        raise Refused(f"{cls.__name__}.{strangers[0]}", "something that is no field")
    if cls.__bases__ != (base,):
        raise Refused(cls.__name__, f"a base other than {base.__name__}")
    if dict(cls.model_config) != SETTINGS:
        raise Refused(cls.__name__, f"model_config {dict(cls.model_config)!r}")


class _Compiler:
    """Compiles one model. Each node type has a method that gives the check of it, as text."""

    def __init__(self, models: ModuleType, cls: type[Any]) -> None:
        _own_class(cls, models.Model)
        self.cls = cls
        self.name: str = cls.__name__
        self.models = models
        self.definitions: list[Node] = []
        self.checks: dict[str, Callable[[Node, str], str]] = {
            "bool": lambda _node, _where: "FLAG",
            "definition-ref": self._model,
            "dict": self._dict,
            "float": self._number,
            "function-after": self._function,
            "int": self._number,
            "list": self._list,
            "literal": self._literal,
            "model": self._model,
            "nullable": self._nullable,
            "str": lambda _node, _where: "TEXT",
        }
        self.fields = self._fields(cls.__pydantic_core_schema__)

    def form(self) -> str:
        """Return the line of the model's Form, which makes its records."""
        fields = " ".join(map(self._field, self.fields))
        aliases = [self._list_aliases(name) for name in self.fields]
        former = [
            f"({_quoted(old)}, {_quoted(alias)})," for alias, *others in aliases for old in others
        ]
        words = [_quoted(self.name), f"({fields})", *([f"({' '.join(former)})"] if former else [])]
        return f"{self.name} = Form({', '.join(words)})"

    def _fields(self, schema: Node) -> Node:
        if _known(schema, self.name) == "definitions":
            self.definitions = schema["definitions"]
            schema = schema["schema"]
        self._is_model(schema, self.name)
        if schema["cls"].__name__ != self.name:
            raise Refused(self.name, "a schema of another model")
        fields: Node = schema["schema"]["fields"]
        return fields

    def _is_model(self, schema: Node, where: str) -> None:
        """Refuse everything but a plain model, whose fields are compiled where it is defined."""
        if _known(schema, where) != "model":
            raise Refused(
                where, f"node type {schema['type']!r} in place of a model (one that holds itself?)"
            )
        config = {
            "title": schema["cls"].__name__,
            "strict": True,
            "extra_fields_behavior": "ignore",
        }
        expected = {"config": config, "custom_init": False, "root_model": False}
        for key, value in expected.items():
            if schema.get(key) != value:
                raise Refused(where, f"{key} {schema.get(key)!r}")
        if getattr(self.models, schema["cls"].__name__, None) is not schema["cls"]:
            raise Refused(where, f"a model from elsewhere, {schema['cls'].__name__}")
        if _known(schema["schema"], where) != "model-fields" or schema["schema"].get(
            "computed_fields"
        ):
            raise Refused(where, "something that is no field")

    def _field(self, name: str) -> str:
        field = self.fields[name]
        where = f"{self.name}.{name}"
        _known(field, where)
        alias = self._list_aliases(name)[0]
        schema = field["schema"]
        default = self._default(schema, where)
        check = self._check(schema["schema"] if schema["type"] == "default" else schema, where)
        return f"({', '.join([_quoted(name), _quoted(alias), default, check])}),"

    def _list_aliases(self, name: str) -> list[str]:
        """Return the keys of a field in the input: its own, and perhaps that of earlier records."""
        alias = self.fields[name].get("validation_alias", name)
        paths = [[alias]] if isinstance(alias, str) else alias
        if len(paths) > 2 or not all(len(path) == 1 and isinstance(path, list) for path in paths):
            raise Refused(f"{self.name}.{name}", f"validation_alias {alias!r}")
        return [path[0] for path in paths]

    def _default(self, schema: Node, where: str) -> str:
        """Return the value of an absent field.

        The check that follows makes a new list or dict each time.

        The compiled code checks the default as any value. pydantic does not,
        so it has to be what a check lets pass.
        """
        if _known(schema, where) != "default":
            return "ABSENT"
        from pydantic_core import SchemaError, SchemaValidator, ValidationError  # noqa: PLC0415  as in _classes

        default = schema["default"]
        node = {"type": "definitions", "definitions": self.definitions, "schema": schema["schema"]}
        try:
            made = SchemaValidator(node, {"strict": True}).validate_python(default)
            # Also of the same types all through: 1 is neither 1.0 nor True.
            same = repr(made) == repr(default)
        except (SchemaError, ValidationError):
            same = False
        if not same:
            raise Refused(where, f"default {default!r}, which is not what its own type makes of it")
        return _display(default, where)

    def _check(self, node: Node, where: str) -> str:
        kind = _known(node, where)
        if kind not in self.checks:
            raise Refused(where, f"node type {kind!r} in this place")
        return self.checks[kind](node, where)

    def _number(self, node: Node, where: str) -> str:
        bounds = (node.get("ge"), node.get("le"))
        for bound in bounds:
            if type(bound) not in (int, type(None)) and not (
                type(bound) is float and isfinite(bound)
            ):
                raise Refused(where, f"bound {bound!r}")
        return f"(check_{node['type']}, (), {bounds[0]}, {bounds[1]})"

    def _literal(self, node: Node, where: str) -> str:
        expected: list[str] = node["expected"]
        if not all(type(value) is str for value in expected):
            raise Refused(where, f"a literal that is no text in {expected!r}")
        return f"(check_literal, (), {', '.join(map(_quoted, expected))})"

    def _nullable(self, node: Node, where: str) -> str:
        check = self._check(node["schema"], where)
        return "TEXT_OR_NONE" if check == "TEXT" else f"(check_nullable, NONE, {check})"

    def _function(self, node: Node, where: str) -> str:
        """Return a function of hook/names.py from text to text:
        the one module that the compiled form imports.
        """
        _known(node["function"], where)
        function = node["function"]["function"]
        name = getattr(function, "__name__", repr(function))
        if getattr(names, name, None) is not function:
            raise Refused(where, f"function {name}, which is not one of hook/names.py")
        if _known(node["schema"], where) != "str" or function.__annotations__.get("return") not in (
            "str",
            str,
        ):
            raise Refused(where, f"function {name} on something other than text")
        return f"(check_named, (), names.{name})"

    def _model(self, node: Node, where: str) -> str:
        if node["type"] == "definition-ref":
            node = next(
                known for known in self.definitions if known.get("ref") == node["schema_ref"]
            )
        self._is_model(node, where)
        return f"(check_model, (), {node['cls'].__name__})"

    def _list(self, node: Node, where: str) -> str:
        return f"(check_list, (), {self._check(node['items_schema'], f'{where}[items]')})"

    def _dict(self, node: Node, where: str) -> str:
        of_key = f"{where}[keys]"
        if _known(node["keys_schema"], of_key) not in ("str", "function-after"):
            raise Refused(of_key, "keys other than text")
        keys, values = (
            self._check(node["keys_schema"], of_key),
            self._check(node["values_schema"], f"{where}[values]"),
        )
        return "TEXTS" if keys == values == "TEXT" else f"(check_dict, (), {keys}, {values})"


def _known(node: Node, where: str) -> str:
    """Return the type of a node whose keys are all known."""
    kind: str = node["type"]
    if kind not in KNOWN:
        raise Refused(where, f"node type {kind!r}")
    for key in node:
        if key not in KNOWN[kind] and key not in EVERYWHERE:
            raise Refused(where, f"key {key!r} of node type {kind!r}")
    return kind


def _display(value: object, where: str) -> str:
    """Write a default as Python text."""
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, list):
        return f"[{', '.join(_display(item, where) for item in value)}]"
    if isinstance(value, dict):
        items = (f"{_quoted(key)}: {_display(item, where)}" for key, item in value.items())
        return f"{{{', '.join(items)}}}"
    if (
        value is None
        or isinstance(value, (bool, int))
        or (isinstance(value, float) and isfinite(value))
    ):
        return repr(value)
    raise Refused(where, f"default {value!r}")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
