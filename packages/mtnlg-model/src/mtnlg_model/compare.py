"""Compare two configurations: every field of both, by attribute, so defaults are included.

Serialized forms must not be compared: files leave out some defaults. A field that may differ is listed with the
reason; every other field is compared, including each field of nested settings.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pydantic import BaseModel

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

TRAINING_ONLY: Final = {
    "dropout": "only applied in training; weights work with any rate",
    "attention_dropout": "as dropout",
    "init_std": "only for initial weights, which a checkpoint replaces",
}
"""Settings in which models with the same weights may differ, with the reasons."""


class Difference(NamedTuple):
    """A field whose values differ; ``key`` is dotted, such as ``model.rotary_scaling.factor``."""

    key: str
    ours: object
    theirs: object


def differences(ours: BaseModel, theirs: BaseModel, may_differ: Mapping[str, str] | None = None) -> list[Difference]:
    """All fields in which two objects of the same settings class differ, in order.

    ``may_differ`` maps keys that are not compared to the reasons; a table's key covers everything in it. Tables in a
    list are compared one by one, with keys such as ``train.change[1].lr``.
    """
    listed = tuple(f"{key}." for key in may_differ or ())
    return [difference for difference in _walk(ours, theirs, "") if not f"{difference.key}.".startswith(listed)]


def _walk(ours: Any, theirs: Any, key: str) -> Iterator[Difference]:  # noqa: ANN401  (any field's values)
    if isinstance(ours, BaseModel) and type(ours) is type(theirs):
        for name in type(ours).model_fields:
            yield from _walk(getattr(ours, name), getattr(theirs, name), f"{key}.{name}" if key else name)
    elif any(isinstance(each, BaseModel) for side in (ours, theirs) if isinstance(side, tuple) for each in side):
        for number, (our, their) in enumerate(zip_longest(ours, theirs)):
            yield from _walk(our, their, f"{key}[{number}]")
    elif ours != theirs:
        yield Difference(key, ours, theirs)
