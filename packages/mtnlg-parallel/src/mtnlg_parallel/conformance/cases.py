"""The configurations that an engine is trained in: fixed ones, and any number drawn from a seed.

A case is a recipe, the number of steps that the plain loop takes before the engine starts, and a step whose update is
forbidden. Starting from the plain loop's state is a resume: weights, both moments and the update count are given.
"""

from __future__ import annotations

import itertools
import math
import random
import tomllib
from contextlib import suppress
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, get_args, get_origin

from pydantic import ValidationError

from mtnlg_model.config import LayerConfig, ModelConfig
from mtnlg_parallel.layout import Layout
from mtnlg_parallel.recipe import Recipe
from mtnlg_parallel.schedules import DEFAULT, OURS, load_schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from mtnlg_model.settings import Settings

SCHEDULES: Final = {name: load_schedule(name) for name in OURS}
TOKENS: Final = 64
"""Number of distinct tokens in the training data."""

_FIXED: Final = tomllib.loads((files(__package__) / "cases.toml").read_text("utf-8"))
DECODERS: Final[Mapping[str, dict[str, Any]]] = _FIXED["decoders"]
"""Settings of decoders by name, each what it changes of the tiny one."""

FACTORS: Final[Mapping[str, tuple[Any, ...]]] = {
    "precision": ("fp32", "bf16", "fp8"),
    "gradients": ("fp32", "bf16"),
    "shard": ("state", "gradients", "parameters"),
    "head": ("tied", "untied"),
    "family": ("gpt", "llama"),
    "schedule": tuple(SCHEDULES),
    "tp": (1, 2),
    "pp": (1, 2),
    "dp": (1, 2),
    "sequence_parallel": (False, True),
    "recompute": ("none", "selective", "full"),
}
"""Factors whose product is the fixed matrix; families are `DECODERS`."""

MOST_RANKS: Final = 8
LAYOUTS: Final = [
    Layout(tp=tp, pp=pp, dp=dp)
    for tp, pp, dp in itertools.product((1, 2, 3, 4), (1, 2, 3, 4, 8), (1, 2, 3, 4, 8))
    if tp * pp * dp <= MOST_RANKS
]


class Case(NamedTuple):
    """A recipe, and how it is trained in a comparison."""

    name: str
    recipe: Recipe
    steps_before: int = 0
    """Steps that the plain loop takes before the engine starts from its state."""
    skipped: int = -1
    """Step, counted from 0, that ``judge`` forbids; -1 for none."""
    masked: bool = False
    """Whether some targets are left out of the loss."""

    @property
    def steps(self) -> list[tuple[int, int]]:
        """(samples consumed before it, batch size) of every step."""
        return list(self.recipe.batch_size.steps(self.recipe.train.samples))


def matrix() -> Iterator[Case]:
    """Every distinct combination of `FACTORS` that is a valid recipe."""
    for values in itertools.product(*FACTORS.values()):
        cell = dict(zip(FACTORS, values, strict=True))
        if cell["tp"] == 1 and cell["sequence_parallel"]:
            continue
        names = ("schedule", "precision", "gradients", "shard", "recompute", "sequence_parallel")
        train = {"chunks": SCHEDULES[cell["schedule"]].fewest_chunks, **{name: cell[name] for name in names}}
        model = {"tied": cell["head"] == "tied", **DECODERS[cell["family"]]}
        layout = {axis: cell[axis] for axis in ("tp", "pp", "dp")}
        with suppress(ValidationError):
            yield Case(" ".join(f"{key}={value}" for key, value in cell.items()), _recipe(model, layout, train))


def listed() -> Iterator[Case]:
    """The cases of ``cases.toml``: a decoder of merged `DECODERS`, a layout, settings of training, and documents."""
    for row in _FIXED["cases"]:
        model: dict[str, Any] = {}
        for name in row["decoders"]:
            model |= DECODERS[name]
        for documents in row.get("documents", ["joined"]):
            recipe = _recipe(model | row.get("model", {}), row.get("layout", {}), row["train"], documents)
            name = f"{', '.join(row['decoders'])}: {documents} {recipe.layout} {row['train']}"
            yield Case(name, recipe, row.get("steps_before", 0), masked=row.get("masked", False))


def covering(cases: Sequence[Case], strength: int = 3) -> list[Case]:
    """A small subset of the cases, chosen greedily, that covers every combination of ``strength`` factors' values."""
    left = [(set(itertools.combinations(case.name.split(), strength)), case) for case in cases]
    missing: set[tuple[str, ...]] = set().union(*(combinations for combinations, _ in left))
    chosen = []
    while missing:
        combinations, case = max(left, key=lambda item: len(item[0] & missing))
        chosen.append(case)
        missing -= combinations
    return chosen


def draw(seed: int, number: int, unsupported: Callable[[Recipe], str | None] = lambda _: None) -> Case:
    """Case ``number`` of a seed; redraws until the recipe is valid and not ``unsupported`` by the engine."""
    chance = random.Random(f"{seed}/{number}")
    while True:
        layout, train = _draw_layout(chance)
        model, cp = _draw_model(chance, layout, train), chance.choice((1, 1, 1, 2, 3, 4))
        sharing = cp if layout.world * cp <= MOST_RANKS else 1
        if sharing > 1:
            unit = 2 * sharing * math.lcm(layout.tp, 16 if train["precision"] == "fp8" else 1)
            model |= {"attention_dropout": 0.0, "sequence": -(-model["sequence"] // unit) * unit}
        documents = chance.choice(("joined", "joined", "isolated"))
        with suppress(ValidationError):
            recipe = _recipe(model, {**layout.model_dump(), "cp": sharing}, train, documents)
            if not unsupported(recipe):
                break
    if chance.random() < 1 / 3:
        names = chance.sample([*recipe.model.parameter_shapes()], chance.randint(1, 8))
        frozen = recipe.model_copy(update={"train": recipe.train.model_copy(update={"frozen": tuple(names)})})
        recipe = recipe if unsupported(frozen) else frozen
    steps = len(Case("", recipe).steps)
    before = chance.choice((0, 0, *range(1, steps)))
    skipped = chance.randrange(before, steps) if steps - before > 1 and chance.random() < 0.2 else -1
    return Case(f"--seed {seed} --first {number}", recipe, before, skipped, masked=chance.random() < 1 / 3)


def _draw_layout(chance: random.Random) -> tuple[Layout, dict[str, Any]]:
    """Draw a layout of up to four ranks, rarely eight, and its training settings."""
    (most,) = chance.choices((1, 2, 4, 8), (2, 6, 16, 1))
    layout = chance.choice([layout for layout in LAYOUTS if most // 2 < layout.world <= most])
    alone = [name for name in SCHEDULES if SCHEDULES[name].takes(1)]
    schedule = chance.choice((DEFAULT, *SCHEDULES) if layout.pp > 1 else alone)
    chunks = (1, 2, 3) if SCHEDULES[schedule].takes(1) else (2, 2, 3)
    micro_batch = chance.choice((1, 1, 2, 3))
    multiple = layout.dp * micro_batch
    batch = multiple * chance.choice([n for n in range(1, 9) if n == 1 or n * multiple <= 24])
    increment = chance.randint(1, max(1, batch // 2))
    start = batch - chance.randint(0, (batch - 1) // increment) * increment
    ramp = {"start": start, "increment": increment, "samples": chance.randint(1, 3 * batch)}
    return layout, {
        "schedule": schedule,
        "chunks": chance.choice(chunks) if SCHEDULES[schedule].takes(2) and layout.pp > 1 else 1,
        "micro_batch": micro_batch,
        "batch": batch,
        "ramp": chance.choice((None, ramp)),
        "samples": batch * chance.randint(1, 4),
        "recompute": chance.choice(("none", "selective", "full")),
        "sequence_parallel": chance.random() < 0.6,
        "offload_activations": chance.random() < 0.3,
        "precision": chance.choice(("fp32", "fp32", "bf16", "bf16", "fp8")),
        "gradients": chance.choice(("fp32", "fp32", "bf16")),
        "shard": chance.choice(("state", "gradients", "parameters")) if layout.pp == 1 else "state",
        "lr": chance.choice((1e-3, 3e-3, 1e-2)),
        "warmup": chance.choice((0, batch)),
        "decay": 20 * batch,
        "clip": chance.choice((0.1, 1.0, 100.0)),
        "weight_decay": chance.choice((0.0, 0.1, 0.5)),
        "seed": chance.randrange(1 << 40),
    }


def _draw_model(chance: random.Random, layout: Layout, train: Mapping[str, Any]) -> dict[str, Any]:
    """Draw a model that the layout can slice, with odd sizes where allowed; 8-bit products need multiples of 16."""
    tp = layout.tp
    unit = 16 if train["precision"] == "fp8" else 1
    heads = tp * chance.choice((1, 1, 2, 3))
    head_size = unit * chance.choice((1, 2)) if unit > 1 else chance.choice((2, 4, 6, 8))
    kv_heads = chance.choice([n for n in range(1, heads + 1) if heads % n == 0])
    drops = chance.random() < 0.1
    sequence = chance.choice((chance.randint(2, 20), chance.randint(2, 20), chance.randint(60, 150)))
    vocabulary = TOKENS + chance.choice((0, chance.randint(0, 70)))
    padding = -vocabulary % tp + tp * chance.choice((0, 0, 8, 80))
    hidden = unit * tp * chance.choice((1, 2) if unit > 1 else (8, 12, 16))
    model = {
        "layers": layout.pp * train["chunks"] + chance.choice((0, 0, 1, 2)),
        "hidden": hidden,
        "heads": heads,
        "head_size": head_size,
        "kv_heads": kv_heads,
        "ffn": tp * unit * chance.choice((1, 2, 3)) * (1 if unit > 1 else chance.choice((5, 8))),
        "sequence": -(-sequence // (tp * unit)) * tp * unit,
        "vocabulary": vocabulary + padding,
        "vocabulary_padding": chance.choice((0, padding)),
        "dropout": chance.choice((0.1, 0.3)) if drops else 0.0,
        "attention_dropout": chance.choice((0.0, 0.2)) if drops else 0.0,
        "init_std": 0.1,
        "positions": "rotary",
    }
    llama3 = {"factor": 8.0, "low_frequency_factor": 1.0, "high_frequency_factor": 4.0, "original_sequence": 8}
    numbers: dict[str, tuple[Any, ...]] = {
        "rotary_base": (500_000.0,),
        "rotary_fraction": (0.5,),
        "rotary_scaling": (llama3, {"factor": 4.0}, {"factor": 4.0, "original_sequence": 8, "attention_factor": 1.2}),
        "attention_scale": (0.2,),
        "attention_softcap": (5.0,),
        "logit_softcap": (3.0,),
        "logits_scaling": (2.0,),
        "embedding_multiplier": (3.0,),
        "residual_multiplier": (0.5,),
        "position_offset": (2,),
        "qkv_clip": (0.5,),
        "embedding_size": (hidden // 2,),
        "by_layer": tuple([_draw_settings(chance, LayerConfig, OF_LAYER) for _ in range(n)] for n in (1, 2, 3)),
    }
    if head_size <= 4:  # norms of so few values are ill-conditioned
        numbers["qk_norm"] = (False, "full")
    if hidden < 32 and train["precision"] != "fp32":  # as are norms of so few rounded values
        numbers["sandwich_norm"] = (False,)
    return model | _draw_settings(chance, ModelConfig, numbers, 0.5 if train["precision"] == "fp32" else 0.25)


OF_LAYER: Final[Mapping[str, tuple[Any, ...]]] = {"window": (1, 5, 12, 40), "rotary_base": (300.0,)}
"""Values of a layer's settings that are numbers."""


def _draw_settings(
    chance: random.Random, kind: type[Settings], numbers: Mapping[str, Sequence[Any]], share: float = 0.5
) -> dict[str, Any]:
    """Draw a share of the settings that decoders differ in: switches, words, and ``numbers``, which has their values.

    Where all results are rounded, many such settings at once make rounding errors as large as the gradients.
    """
    types = {name: field.annotation for name, field in kind.model_fields.items()}
    words = {name: get_args(each) for name, each in types.items() if get_origin(each) is Literal}
    switches = {name: (False, True) for name, each in types.items() if each is bool}
    values = {**switches, **words, **numbers}
    return {name: chance.choice(each) for name, each in values.items() if chance.random() < share}


def _recipe(
    model: Mapping[str, Any], layout: Mapping[str, int], train: Mapping[str, Any], documents: str = "joined"
) -> Recipe:
    """The recipe of these settings. Raises ``ValidationError`` if they do not fit."""
    whole = {"batch": 8, "samples": 16, "lr": 3e-3, "decay": 256, "weight_decay": 0.5, **train}
    whole_model = {"dropout": 0.0, "attention_dropout": 0.0, **DECODERS["tiny"], **model}
    sections = {"model": whole_model, "layout": dict(layout)}
    sections |= {"data": {"documents": documents}, "train": {"validation_samples": whole["batch"], **whole}}
    return Recipe.model_validate(sections, strict=False)
