"""Reads ``train.toml`` into a `Recipe`: the model of the initial weights, and lengths in words as samples.

    "300B tokens"    tokens / model.sequence, rounded to the nearest sample, halves to even
    "3 epochs"       passes over all samples of --data, each source once per pass
    "5000 steps"     the samples of the first 5,000 steps by train.batch and train.ramp, which itself cannot be in
                     steps. A layout's rounding of the ramp is ignored, so that a length is the same in every layout

What cannot be converted stays as it is written: the field that holds it reports why.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pydantic import ValidationError

from mtnlg_model.config import ModelConfig
from mtnlg_model.console import Failure, UsageFailure
from mtnlg_model.settings import read_toml, validate
from mtnlg_parallel.training.schedule import LIMIT, BatchSize, Ramp, parse_length

from .engine.contract import ENGINES
from .planner.cluster import load_cluster
from .recipe import Recipe, expand_preset

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FILE: Final = "train.toml"
LENGTHS: Final = ("samples", "warmup", "hold", "decay", "start_sample")
"""Keys of [train] in samples, which a recipe may write in words, like its changes' keys and the ramp's."""


def load_recipe(path: Path | str, overrides: Sequence[str] = (), data: Path | None = None) -> Recipe:
    """`read_recipe`, of a run to start or to plan. Raises ``UsageFailure`` also if a user's engine cannot train it.

    So it does if the cluster is unknown, or the model has a setting that is not read with its positions. A cluster's
    file is not read: it may be missing where the ranks run.
    """
    recipe = read_recipe(path, overrides, data)
    if recipe.cluster and not recipe.cluster.endswith(".toml"):
        load_cluster(recipe.cluster)
    positions = recipe.model.positions
    for key in recipe.model.beyond_gpt:
        needed = {"rotary": "rotary", "position": "learned"}.get(key.partition("_")[0], positions)
        if needed != positions:
            raise UsageFailure(f'{path}: model.{key} needs model.positions = "{needed}"')
    if recipe.train.engine not in ENGINES:
        from .engine.build import supported_engine  # noqa: PLC0415  (imports torch)

        supported_engine(recipe)
    return recipe


def read_recipe(path: Path | str, overrides: Sequence[str] = (), data: Path | None = None) -> Recipe:
    """Read ``path``, a recipe or a folder that holds ``train.toml``, with ``KEY=VALUE`` overrides.

    Epochs are passes over ``data``, a folder written by mtnlg-data. Raises ``Failure`` if there is no recipe, and
    ``UsageFailure`` with a line for each mistake. A user's engine is not imported: it may be missing here.
    """
    place, content = read_toml(Path(path), FILE, overrides)
    if isinstance(train := content.get("train"), dict):
        try:
            if not (content.get("model") or train.get("initial")):
                raise ValueError("has no [model]; add it, or start from a model's folder: train.initial, --from")  # noqa: TRY301
            model = _initial_model(content.get("model", {}), train, data)
            _Lengths(_sequence(model), data).convert(train)
            content["model"] = model
        except (ValueError, Failure) as error:
            raise UsageFailure(f"{place}: {error}") from None
    return validate(content, Recipe, str(place))


class _Lengths(NamedTuple):
    """Converts lengths of a recipe with samples of ``sequence`` tokens, whose epochs are passes over ``data``."""

    sequence: int | None
    data: Path | None

    def convert(self, train: dict[str, Any]) -> None:
        """Replace the lengths of a recipe's [train] by samples, if the keys needed to convert them are valid."""
        if isinstance(ramp := train.get("ramp"), dict) and "samples" in ramp:
            ramp["samples"] = self._count(ramp["samples"], lambda _: None)
        schedule, changes = _batch_size(train.get("batch"), ramp), train.get("change")
        for number, change in enumerate(changes if isinstance(changes, list) else ()):
            if isinstance(change, dict):
                place = f"train.change.{number}"
                self._convert_table(change, ("at",), place, schedule)
                at, own = change.get("at"), _batch_size(change.get("batch"), None)
                if schedule and own and type(at) is int:
                    schedule = replace(schedule, changes=(*schedule.changes, (at, own.size)))
                self._convert_table(change, ("hold", "decay"), place, schedule)
                self._convert_table(change, ("warmup",), place, schedule, at if type(at) is int else 0)
        self._convert_table(train, LENGTHS, "train", schedule)

    def _convert_table(
        self, table: dict[str, Any], keys: Sequence[str], place: str, schedule: BatchSize | None, begin: int = 0
    ) -> None:
        """Replace those lengths of a table; their steps begin after ``begin`` samples."""
        for key in table.keys() & keys:
            value = table[key]
            table[key] = self._count(value, lambda n: schedule.samples_after(n, begin) if schedule else None)
            if table[key] == 0 != value and isinstance(value, str) and parse_length(value).amount:
                less = f"less than half a sample of model.sequence = {self.sequence} tokens, so 0 samples; write more"
                raise ValueError(f"{place}.{key} = {value!r} is {less}")

    def _count(self, written: Any, after: Callable[[int], int | None]) -> Any:  # noqa: ANN401  (what the file holds)
        """A length in samples, or ``written`` itself; ``after`` gives the samples of a number of steps."""
        try:
            amount, unit = parse_length(written)
        except (TypeError, ValueError):
            return written
        counted = None
        if unit in {"samples", "steps"}:
            steps = min(int(amount), LIMIT)
            counted = steps if unit == "samples" else after(steps)
        elif self.sequence and unit == "tokens":
            counted = round(amount / self.sequence)
        elif self.sequence and self.data:
            from mtnlg_parallel.training.samples import samples_of  # noqa: PLC0415  (of these recipes alone)

            counted = round(amount * samples_of(self.data, self.sequence))
        return written if counted is None else counted


def _initial_model(model: Any, train: dict[str, Any], data: Path | None) -> Any:  # noqa: ANN401  (what the file holds)
    """A [model] merged over the configuration of the initial weights, unless it has a preset or layers of its own.

    With ``new_tokenizer`` the model gets a row for each token of ``data``.
    """
    initial = train.get("initial")
    if not (isinstance(initial, str) and initial and isinstance(model, dict)) or {"preset", "layers"} & model.keys():
        return model
    from .initial import read_initial, with_tokens  # noqa: PLC0415  (reads files, of these runs alone)

    config = read_initial(initial).config
    if data and train.get("new_tokenizer"):
        from mtnlg_data.tokens.blend import read_blend  # noqa: PLC0415  (as above)

        config = with_tokens(config, read_blend(data / "tokens").vocabulary)
    return config.model_dump(mode="json") | model


def _sequence(model: Any) -> int | None:  # noqa: ANN401  (as above)
    """Tokens per sample by a recipe's [model]; None if that is not valid."""
    try:
        return ModelConfig.model_validate(expand_preset(model)).sequence
    except (ValidationError, UsageFailure):
        return None


def _batch_size(size: Any, ramp: Any) -> BatchSize | None:  # noqa: ANN401  (as above)
    """The batch size as in the recipe, before a layout rounds it; None if a key is not valid.

    A ramp that does not meet the batch is ignored here: `Train` refuses it.
    """
    try:
        valid = Ramp.model_validate(ramp) if ramp is not None else None
    except ValidationError:
        return None
    if type(size) is not int or not 0 < size < LIMIT:
        return None
    return BatchSize(size, valid if valid and valid.meets(size) else None, multiple=1)
