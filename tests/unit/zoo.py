# SPDX-License-Identifier: Apache-2.0
"""Models with all that the compiler knows, much of which the hook's own do not use today."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from hook.base import names

__all__ = ["Containers", "Leaf", "Model", "Numbers", "ValidationError", "Whole"]

Word = Literal["one", "two"]


class Model(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")


class Leaf(Model):
    name: Annotated[str, AfterValidator(names.container_id)] = Field(alias="the name")
    count: int = 3


class Numbers(Model):
    any_int: int
    from_int: Annotated[int, Field(ge=-5)]
    to_int: Annotated[int, Field(le=5)]
    any_float: float
    from_float: Annotated[float, Field(ge=0.5)]
    to_float: Annotated[float, Field(le=1)] = -2.5
    no_int: Annotated[int, Field(ge=5, le=4)] | None


class Containers(Model):
    lists: list[list[int]] = [[1], []]
    nullables: list[bool | None]
    leaves: list[Leaf]
    dicts: dict[str, dict[str, list[Leaf]]] = {}
    keys: dict[Annotated[str, AfterValidator(names.directory)], float] = {"/a": 1.5}
    words: dict[str, Literal["only"]] | None


class Whole(Model):
    """Also names that the compiled text uses for itself."""

    required: Leaf
    nullable: Leaf | None
    optional: Leaf | None = None
    get: str | None = Field(None, alias="value")
    value: str = Field("é\n\"'", alias="get")
    fields: Annotated[str, AfterValidator(names.directory)] | None = "/x"
    item: bool = True
    key: Literal["it's", 'a "b"'] = "it's"
    error: Word | None = None
