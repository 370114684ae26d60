"""How a file of the run folder is read: JSON into typed parts; keys that the report has no use for are passed over."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from mtnlg_model.console import Failure


class Part(BaseModel):
    """Base of everything read here: immutable, and open to keys that the report does not use."""

    model_config = ConfigDict(frozen=True, extra="ignore")


P = TypeVar("P", bound=Part)


def parse(content: bytes, schema: type[P], place: str) -> P:
    """The content as the schema has it; ``Failure`` names ``place``, the key and the value that break it."""
    try:
        return schema.model_validate_json(content)
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in detail["loc"])
        shown = "" if isinstance(detail["input"], dict | list) else f" = {str(detail['input'])[:60]!r}"
        where = f"{place}: {key}{shown}" if key else place
        raise Failure(f"{where}: {detail['msg']}; run the stage that wrote it again") from None
