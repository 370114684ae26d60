"""blend.json: the token stores of a data set, their weights, and the share held out for validation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from pydantic import Field, ValidationError, model_validator

from mtnlg_data.console import Failure
from mtnlg_data.files import read_small
from mtnlg_data.settings import Settings
from mtnlg_data.transfer.url_files import read_url
from mtnlg_data.transfer.urls import Url

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mtnlg_data.transfer.urls import Location

UNITS = 1 << 32
"""Integer weights of the sources of a blend add up to this."""
WEIGHT_TOLERANCE = 1e-3


class BlendSource(Settings):
    """One token store of a blend, as in blend.json."""

    name: str
    prefix: str = Field(description="of the .bin/.idx pair, from blend.json's folder")
    weight: float = Field(gt=0)
    documents: int = Field(ge=0)
    tokens: int = Field(ge=0)
    sha256: str = Field(description="TokenStore.checksum")
    mask: str = Field("", description="that of PREFIX.mask, a store with 1 where a token is learned; empty: all are")


class Blend(Settings):
    """blend.json: the token stores, their weights, and the share held out for validation."""

    seed: int
    vocabulary: int = Field(gt=0)
    eod: int = Field(ge=0)
    validation: float = Field(ge=0, lt=1, description="share of each source's documents, from its end")
    sources: tuple[BlendSource, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _check_names_and_weights(self) -> Self:
        names = [source.name for source in self.sources]
        if len(set(names)) < len(names):
            raise ValueError(f"sources share a name: {', '.join(names)}")
        for source in self.sources:
            if source.prefix.startswith("/") or ".." in source.prefix.split("/"):
                raise ValueError(f"prefix {source.prefix!r} of {source.name} leaves the folder of blend.json")
        least = min(self.sources, key=lambda source: source.weight)
        if least.weight * UNITS < sum(source.weight for source in self.sources):
            raise ValueError(f"weight {least.weight} of {least.name} is under 2**-32 of all; leave it out")
        return self


def check_weights(weights: Mapping[str, float]) -> None:
    """Raise ``ValueError`` if these weights of sources do not sum to 1, within ``WEIGHT_TOLERANCE``."""
    total = sum(weights.values())
    if abs(total - 1) > WEIGHT_TOLERANCE:
        each = " + ".join(f"{name} {weight:g}" for name, weight in weights.items())
        raise ValueError(f"the weights of the sources sum to {total:g}, not to 1: {each}")


def read_blend(tokens: Location) -> Blend:
    """The blend in a folder of token stores. Raises ``Failure`` if blend.json is missing or wrong."""
    path = tokens / "blend.json"
    try:
        return Blend.model_validate_json(read_url(path) if isinstance(path, Url) else read_small(path))
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}; it is written by the tokenize stage of mtnlg-data") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = "".join(f"{part}: " for part in first["loc"])
        raise Failure(f"{path}: {where}{first['msg'].removeprefix('Value error, ')}") from None


def held_out(documents: int, validation: float) -> int:
    """Number of a source's last documents held out for validation: its share, rounded.

    With two or more documents and a share above zero, each split gets at least one document.
    """
    if documents < 2 or validation == 0:
        return 0
    numerator, denominator = validation.as_integer_ratio()
    return min(max((2 * numerator * documents + denominator) // (2 * denominator), 1), documents - 1)
