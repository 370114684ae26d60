"""Records stored in files, as pydantic models: base class, reader and one-line explanation of a malformed record."""

from __future__ import annotations

import json
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from mtnlg_model.console import Failure

T = TypeVar("T", bound=BaseModel)


class Record(BaseModel):
    """Base of records: immutable; unknown keys, such as those of other versions, are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


def parse_record(content: bytes, schema: type[T], place: str, hint: str = "run the stage that wrote it again") -> T:
    """Validate JSON against ``schema``. Raises ``Failure`` naming ``place``, the malformed key, its value and a fix."""
    try:
        return schema.model_validate_json(content)
    except ValidationError as error:
        raise Failure(f"{place}: {explain(error)}; {hint}") from None


def explain(error: ValidationError) -> str:
    """First error of a record in a few words: key, value and expectation."""
    detail = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in detail["loc"])
    message = detail["msg"].removeprefix("Value error, ")
    if detail["type"] == "missing":
        return f"{key}: required key is missing"
    if detail["type"] == "string_too_short":
        return f"{key} is empty"
    value = json.dumps(detail["input"], ensure_ascii=False, default=str, skipkeys=True)
    value = value if len(value) <= 60 else f"{value[:57]}..."
    return f"{key} = {value}: {message}" if key else message
