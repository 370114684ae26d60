"""What the schemas of a report's files share, and their reader."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from mtnlg_model.console import Failure

T = TypeVar("T", bound=BaseModel)


class Schema(BaseModel):
    """Base of every schema of the report: immutable; ignores keys that the report does not use."""

    model_config = ConfigDict(frozen=True, extra="ignore")


def parse_json(content: bytes, schema: type[T], place: str) -> T:
    """Validate JSON against the schema; ``Failure`` names ``place``, the malformed key and its value."""
    try:
        return schema.model_validate_json(content)
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in detail["loc"])
        shown = "" if isinstance(detail["input"], dict | list) else f" = {str(detail['input'])[:60]!r}"
        where = f"{place}: {key}{shown}" if key else place
        raise Failure(f"{where}: {detail['msg']}; run the stage that wrote it again") from None
