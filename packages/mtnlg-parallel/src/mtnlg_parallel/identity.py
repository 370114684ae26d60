"""Checks that a run matches the state it resumes or starts from: recipe, model, token stream, tokenizer. No torch.

A run resumes, or starts with ``--from``, only if these are the same. Each is compared in full; exceptions are listed
here with their reasons. A tokenizer.json next to the weights records their tokenizer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from mtnlg_model.checkpoint.chat_files import own_file
from mtnlg_model.checkpoint.manifest import TOKENIZER, file_checksum
from mtnlg_model.compare import TRAINING_ONLY, Difference, differences
from mtnlg_model.console import UsageFailure

from .recipe import Change

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from mtnlg_model.checkpoint.manifest import Manifest
    from mtnlg_model.config import ModelConfig

    from .initial import Initial
    from .recipe import Recipe

RESUMED_MAY_DIFFER: Final = {
    "cluster": "what is planned, not what is trained",
    "layout": "any layout gives the same losses",
    "guard": "limits for the steps to come",
    "watch": "what is measured, not what is trained",
    "slurm": "how a job is submitted",
    "train.samples": "a run may become longer or shorter; train.decay, which shapes the learning rate, is compared",
    "train.micro_batch": "how a batch is cut",
    "train.precision": "of the steps to come; master weights and moments are fp32 in each",
    "train.gradients": "as precision",
    "train.shard": "which rank holds the same state",
    "train.recompute": "the same gradients, of more or less memory",
    "train.engine": "what runs the same work",
    "train.schedule": "the order of the same work",
    "train.chunks": "where the same layers are",
    "train.sequence_parallel": "where the same activations are",
    "train.offload_activations": "as sequence_parallel",
    "train.kernels": "the same functions, fused or not",
    "train.deterministic": "the same functions, in an order of their own",
    "train.checkpoint_every": "what is kept, not what is trained",
    "train.keep": "as checkpoint_every",
    "train.keep_every": "as checkpoint_every",
    "train.copy_to": "as checkpoint_every",
    "train.new_tokenizer": "what a run may start from; one that resumes has its tokenizer",
    "train.validation_every": "what is measured, not what is trained",
    "train.validation_samples": "as validation_every",
}
"""Keys of the recipe that may change when a run resumes, with the reasons."""

ROTARY_MAY_DIFFER: Final = {
    "sequence": "rotary positions go on beyond the tokens that the weights were trained on, or end before them",
    "rotary_scaling": "how they go on",
}
"""Fields of a model with rotary positions that may differ between a run and its initial weights, with the reasons."""

VOCABULARY_MAY_GROW: Final = {
    "vocabulary": "tokens that only the data's tokenizer has get rows of a new model",
    "vocabulary_padding": "as vocabulary",
}
"""Fields that may differ from the initial weights where ``new_tokenizer`` adds tokens, with the reasons."""

OPTIONS: Final = {"train.initial": "--from", "train.new_tokenizer": "--new-tokenizer"}
"""Options of the command that set a key of the recipe."""


class DataFingerprint(NamedTuple):
    """The fingerprint of a run's first N samples, as a function of N, and the tokenizer.json that made its tokens."""

    stream: Callable[[int], str]
    tokenizer: Path


class IdentityError(UsageFailure):
    """Two things that must be the same for a run differ; ``differences`` has the values, ours and theirs."""

    def __init__(self, line: str, changed: Sequence[Difference]) -> None:
        super().__init__(line)
        self.differences = changed


def check_same_run(out: Path, before: Recipe, now: Recipe, samples: int) -> None:
    """Raise ``IdentityError`` unless two recipes agree on a run's first ``samples`` samples."""
    past, ours = (each.model_copy(update={"train": each.train.until(samples)}) for each in (before, now))
    if changed := differences(past, ours, RESUMED_MAY_DIFFER):
        hint = "--from CHECKPOINT with another --out starts a new run from its weights, --no-resume starts over"
        keys = {each.key.removeprefix("train.").partition("[")[0] for each in changed}
        if samples and keys <= {"change", *Change.model_fields}:
            hint = f"put changes from here on under [[train.change]] with at = {samples} or later; {hint}"
        raise IdentityError(f"{out}: another run: {changes(changed)}; {hint}", changed)
    lost = {each for part in before.train.stream_parts for each in part.skip}
    lost -= {each for part in now.train.stream_parts for each in part.skip}
    if lost:
        line = f"the run skips samples {[*map(list, sorted(lost))]}, and the recipe does not; add them to skip"
        raise IdentityError(
            f"{out}: {line}, or resume with {out / 'recipe.toml'}", [Difference("train.skip", lost, ())]
        )


def changes(changed: Sequence[Difference]) -> str:
    """Differences as text: "ours" is the earlier recipe, "theirs" the current one."""
    texts = []
    for key, before, now in changed:
        name = f"{key} ({OPTIONS[key]})" if key in OPTIONS else key
        # train.decay defaults to all samples, so changing the number of samples changes the schedule.
        way_out = f" (--set {key}={before} resumes)" if key == "train.decay" and len(changed) == 1 else ""
        texts.append(f"{name} was {_shown(before)} and is {_shown(now)} now{way_out}")
    return ", ".join(texts)


def _shown(value: object) -> str:
    """A recipe's value as text; a table as an inline TOML table."""
    if not isinstance(value, Change):
        return repr(value)
    return f"{{ {', '.join(f'{key} = {each!r}' for key, each in value.model_dump(exclude_defaults=True).items())} }}"


def check_resumed(folder: Path, manifest: Manifest, recipe: Recipe, data: DataFingerprint) -> None:
    """Raise ``IdentityError`` unless a checkpoint's run may continue with this recipe and data."""
    _check_model(str(folder), manifest.config, recipe, "use another --out")
    stream, hint = manifest.progress.stream, "use that run's data, or another --out"
    if stream != (ours := data.stream(manifest.progress.samples)):
        line = f"{folder}: trained on token stream {stream[:12]}, but --data is {ours[:12]}; {hint}"
        raise IdentityError(line, [Difference("stream", ours, stream)])
    _check_tokenizer(str(folder), folder, data, hint)


def check_initial(initial: Initial, recipe: Recipe, data: DataFingerprint) -> None:
    """Raise ``IdentityError`` unless a run with this recipe and data may start from these weights."""
    place, replaces = f"--from {initial.folder}", recipe.train.new_tokenizer
    hint = "set the recipe's to the checkpoint's, or give another --from"
    may_differ = ROTARY_MAY_DIFFER if recipe.model.positions == "rotary" else {}
    if recipe.model.tokens > initial.config.tokens:
        hint = f"{hint}; only --new-tokenizer adds tokens to its {initial.config.tokens}"
        may_differ = may_differ | VOCABULARY_MAY_GROW if replaces else may_differ
    _check_model(place, initial.config, recipe, hint, may_differ)
    if not replaces:
        hint = "tokenize the data with the model's, or train on with the data's: --new-tokenizer"
        _check_tokenizer(place, initial.folder, data, hint)


def _check_model(
    place: str, config: ModelConfig, recipe: Recipe, hint: str, may_differ: Mapping[str, str] = {}
) -> None:
    may_differ = {**TRAINING_ONLY, **may_differ}
    if changed := [each._replace(key=f"model.{each.key}") for each in differences(recipe.model, config, may_differ)]:
        texts = [f"{key} is {theirs!r} here and {ours!r} in the recipe" for key, ours, theirs in changed]
        raise IdentityError(f"{place}: {', '.join(texts)}; {hint}", changed)


def _check_tokenizer(place: str, folder: Path, data: DataFingerprint, hint: str) -> None:
    ours, theirs = data.tokenizer.resolve(), own_file(folder, TOKENIZER)
    if file_checksum(theirs) == file_checksum(ours):
        return
    from mtnlg_model.tokenizer import tokenizer_difference  # noqa: PLC0415  (tokenizers, seldom needed)

    if difference := tokenizer_difference(ours, theirs):
        line = f"{place}: trained with another tokenizer than --data has: {difference}; {hint}"
        raise IdentityError(line, [Difference("tokenizer", data.tokenizer, theirs)])
