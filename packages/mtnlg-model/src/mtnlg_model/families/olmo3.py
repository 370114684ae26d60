"""OLMo 3: OLMo 2 with windows in three of four layers, whose rotary positions are not scaled (Team OLMo 2025)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mtnlg_model.console import Failure

from .family import Field, Fields, LayersBy
from .olmo2 import FAMILY as OLMO2

if TYPE_CHECKING:
    from mtnlg_model.config import ModelConfig

_BASE = 500_000.0


def _tables(config: ModelConfig) -> dict[str, dict[str, object]]:
    bases = {layer.rotary_base for layer in config.by_layer} - {None}
    sliding: dict[str, object] = {"rope_type": "default", "rope_theta": next(iter(bases), config.rotary_base)}
    return {"full_attention": {**sliding, "rope_theta": config.rotary_base}, "sliding_attention": sliding}


def _base(fields: Fields, _n: int, slides: bool | None) -> dict[str, object]:
    tables, base = fields["rope_parameters"], fields["rope_theta"]
    if not tables and base != _BASE:
        raise Failure(f"rope_theta = {base}: only {_BASE} is supported; versions of transformers differ in its use")
    return {"rotary_base": float(tables["sliding_attention"]["rope_theta"]) if tables else base} if slides else {}


FAMILY = OLMO2.like(
    "Olmo3ForCausalLM",
    fields={
        "rope_theta": Field("rotary_base", _BASE),
        "rope_parameters": Field(kind=dict, default=None, write=_tables),
    },
    layers_by=LayersBy(4096, slides=lambda _fields, n: (n + 1) % 4 != 0, reads_types=True, settings=_base),
)
