"""A run resumes, or starts from a checkpoint, only where recipe, model, stream and tokenizer are the same."""

import json
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, get_args

import pytest
import tokenizers
from pydantic import BaseModel, ValidationError

from mtnlg_model.checkpoint.manifest import CHAT_FILES, Layout, Progress
from mtnlg_model.checkpoint.reader import save
from mtnlg_model.compare import TRAINING_ONLY, Difference, differences
from mtnlg_model.config import ModelConfig
from mtnlg_model.console import UsageFailure
from mtnlg_model.decoder import Decoder
from mtnlg_model.families import PRESETS
from mtnlg_parallel.identity import RESUMED_MAY_DIFFER, DataFingerprint, IdentityError, check_same_run
from mtnlg_parallel.recipe import Recipe
from mtnlg_parallel.record.run_dir import CHECKPOINTS, prepare_run_dir

SIZES = {"layers": 2, "hidden": 16, "heads": 2, "sequence": 8, "vocabulary": 64}
TRAIN: dict[str, Any] = {"samples": 32, "batch": 8, "lr": 1e-3}
WHOLE = Recipe.model_validate(
    {
        "model": {"preset": "llama-3.1-8b"},
        "train": {**TRAIN, "ramp": {"start": 4, "increment": 4, "samples": 8}},
    }
)
"""With every table that a recipe may have."""


def leaves(settings: BaseModel, prefix: str = "") -> Iterator[str]:
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        yield from leaves(value, f"{prefix}{name}.") if isinstance(value, BaseModel) else (f"{prefix}{name}",)


def changed(settings: BaseModel, key: str, value: object) -> BaseModel:
    """An unvalidated copy in which ``key`` has another value."""
    name, _, rest = key.partition(".")
    return BaseModel.model_copy(
        settings, update={name: changed(getattr(settings, name), rest, value) if rest else value}
    )


KEYS = [*leaves(WHOLE), "train.ramp", "model.rotary_scaling"]


def tables(key: str) -> set[str]:
    """The key, and the tables that it is in."""
    parts = key.split(".")
    return {".".join(parts[:depth]) for depth in range(1, len(parts) + 1)}


@pytest.mark.parametrize("key", KEYS)
def test_every_key_of_a_recipe_is_compared_or_listed(key: str) -> None:
    other, listed = changed(WHOLE, key, "another"), tables(key) & RESUMED_MAY_DIFFER.keys()
    for ours, theirs in ((WHOLE, other), (other, WHOLE)):
        assert [found.key for found in differences(ours, theirs)] == [key]
        assert bool(differences(ours, theirs, RESUMED_MAY_DIFFER)) == (not listed)


@pytest.mark.parametrize(("shape", "resumes"), [("constant", True), ("linear", False)])
def test_a_run_whose_rate_never_decays_may_become_longer(shape: str, resumes: bool, tmp_path: Path) -> None:
    train = {**TRAIN, "decay_shape": shape}
    short, longer = (
        Recipe.model_validate({"model": SIZES, "train": {**train, "samples": samples}}) for samples in (16, 32)
    )
    check_same_run(tmp_path, short, short, 16)
    with nullcontext() if resumes else pytest.raises(IdentityError, match=r"train\.decay was 16 and is 32 now"):
        check_same_run(tmp_path, short, longer, 16)


@pytest.mark.parametrize(
    ("model", "train", "steers"), [({}, {"lr": 1e-4}, True), ({"sequence": 16}, {}, False), ({}, {"seed": 5}, False)]
)
def test_only_what_can_change_is_said_to(
    model: dict[str, int], train: dict[str, Any], steers: bool, tmp_path: Path
) -> None:
    before = Recipe.model_validate({"model": SIZES, "train": TRAIN})
    now = Recipe.model_validate({"model": SIZES | model, "train": TRAIN | train | {"samples": 64}})
    with pytest.raises(IdentityError, match=r"train\.decay was 32 and is 64 now[,;]") as caught:
        check_same_run(tmp_path, before, now, 16)
    assert ("[[train.change]]" in str(caught.value)) == steers


def test_allowed_differences_are_keys_with_reasons() -> None:
    listed = RESUMED_MAY_DIFFER | {f"model.{key}": reason for key, reason in TRAINING_ONLY.items()}
    assert listed.keys() <= set().union(*map(tables, KEYS))
    assert all(listed.values())


def variant(config: ModelConfig, field: str) -> ModelConfig:
    """A valid configuration in which ``field`` has another value."""
    value, annotation = getattr(config, field), ModelConfig.model_fields[field].annotation
    numbers = (
        [value * 2, value // 2 if isinstance(value, int) else value / 2] if isinstance(value, (int, float)) else []
    )
    values = [not value] if isinstance(value, bool) else [*numbers, *get_args(annotation)]
    for other in [*values, 1, 0.5, [{"window": 2}], *(getattr(preset, field) for preset in PRESETS.values())]:
        try:
            found = ModelConfig.model_validate({**config.model_dump(mode="json"), field: other})
        except ValidationError:
            continue
        if getattr(found, field) != value:
            return found
    raise AssertionError(f"no other value of {field} is valid")


def checkpoint_of(config: ModelConfig, folder: Path, tokenizer: Path, stream: str = "stream") -> Path:
    progress = Progress(step=4, samples=32, tokens=256, loss=4.0, stream=stream, layout=Layout())
    return save(Decoder(config), folder, 4, progress, tokenizer)


def recipe_of(config: ModelConfig, **train: object) -> Recipe:
    return Recipe(model=config, train=Recipe.model_validate({"model": SIZES, "train": {**TRAIN, **train}}).train)


NEEDS = {
    "shared_norm": {"parallel_residual": True},
    "head_bias": {"tied": False},
}
"""Fields that no model has without others."""


@pytest.mark.parametrize("field", ModelConfig.model_fields)
def test_from_accepts_only_the_recipes_model(field: str, tmp_path: Path) -> None:
    """Each field, at its default in the recipe or in the checkpoint, as it is written to disk."""
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text("{}")
    data = DataFingerprint(lambda _: "other", tokenizer)
    base = ModelConfig.model_validate({**SIZES, **NEEDS.get(field, {})})
    other = variant(base, field)
    for number, (ours, theirs) in enumerate(((base, other), (other, base))):
        step = checkpoint_of(theirs, tmp_path / str(number), tokenizer)
        recipe = recipe_of(ours, initial=str(step))
        if field in TRAINING_ONLY:
            prepare_run_dir(tmp_path / f"out-{number}", recipe, data, resume=True)
            continue
        with pytest.raises(IdentityError, match="--from") as caught:
            prepare_run_dir(tmp_path / f"out-{number}", recipe, data, resume=True)
        assert f"model.{field}" in {found.key.partition("[")[0] for found in caught.value.differences}
        out = tmp_path / f"own-{number}"
        checkpoint_of(theirs, out / CHECKPOINTS, tokenizer, data.stream(0))
        with pytest.raises(IdentityError, match=rf"model\.{field}(\[0\])? is ") as caught:
            prepare_run_dir(out, recipe_of(ours), data, resume=True)


def test_refused_start_over_keeps_the_run(tmp_path: Path) -> None:
    tokenizer, config = tmp_path / "tokenizer.json", ModelConfig.model_validate(SIZES)
    tokenizer.write_text("{}")
    data = DataFingerprint(lambda _: "stream", tokenizer)
    step = checkpoint_of(config, tmp_path / "out" / CHECKPOINTS, tokenizer)
    for ours, line in ((config.model_copy(update={"ffn": 8}), "model.ffn is"), (config, "--no-resume deletes it")):
        with pytest.raises(UsageFailure, match=line):
            prepare_run_dir(tmp_path / "out", recipe_of(ours, initial=str(step)), data, resume=False)
        assert (step / "manifest.json").exists()


@pytest.mark.parametrize(
    ("vocabulary", "padding", "new_tokenizer", "starts"),
    [(66, 0, True, True), (128, 60, True, True), (128, 64, True, False), (62, 0, True, False), (66, 0, False, False)],
)
def test_new_tokenizer_adds_tokens_to_the_model(
    vocabulary: int, padding: int, new_tokenizer: bool, starts: bool, tmp_path: Path
) -> None:
    """To those of a checkpoint of 64; nothing else of its vocabulary may differ."""
    tokenizer = write_tokenizer(tmp_path / "data" / "tokenizer.json", "<|endoftext|>")
    step = checkpoint_of(ModelConfig.model_validate(SIZES), tmp_path, tokenizer)
    config = ModelConfig.model_validate({**SIZES, "vocabulary": vocabulary, "vocabulary_padding": padding})
    recipe = recipe_of(config, initial=str(step), new_tokenizer=new_tokenizer)
    with nullcontext() if starts else pytest.raises(IdentityError, match=r"model\.vocabulary is 64 here") as caught:
        prepare_run_dir(tmp_path / "out", recipe, DataFingerprint(lambda _: "stream", tokenizer), resume=True)
    assert starts or ("only --new-tokenizer adds tokens to its 64" in str(caught)) == (vocabulary == 66)


def write_tokenizer(path: Path, *special: str, indent: int | None = None) -> Path:
    """A tokenizer of 64 tokens."""
    path.parent.mkdir(exist_ok=True)
    words = tokenizers.models.WordLevel({str(n): n for n in range(64 - len(special))}, unk_token="0")  # noqa: S106
    tokenizer = tokenizers.Tokenizer(words)
    tokenizer.add_special_tokens(list(special))
    path.write_text(json.dumps(json.loads(tokenizer.to_str()), indent=indent, sort_keys=True))
    return path


@pytest.mark.parametrize("door", ["resume", "--from"])
def test_other_tokenizer_is_refused_unless_equal(door: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, names = ModelConfig.model_validate(SIZES), ("<|endoftext|>", "<|im_end|>")
    theirs = write_tokenizer(tmp_path / "model" / "tokenizer.json", *names)
    (theirs.parent / CHAT_FILES[0]).write_text("{{ messages[0].content }}<|im_end|>")
    (theirs.parent / CHAT_FILES[1]).write_text('{"eos_token_id": [62, 63]}')
    out = tmp_path / "out"
    step = checkpoint_of(config, out / CHECKPOINTS if door == "resume" else tmp_path / "start", theirs)
    train = {"initial": str(step)}
    swapped = DataFingerprint(lambda _: "stream", write_tokenizer(tmp_path / "data" / "tokenizer.json", *names[::-1]))
    with pytest.raises(IdentityError) as caught:
        prepare_run_dir(out, recipe_of(config, **train), swapped, resume=True)
    assert caught.value.differences == [Difference("tokenizer", swapped.tokenizer, step / "tokenizer.json")]
    assert all(str(path) in str(caught.value) for path in (swapped.tokenizer, step))
    assert ("--new-tokenizer" in str(caught.value)) == (door == "--from")
    assert not (out / "recipe.toml").exists(), "before any work"
    recipe = recipe_of(config, **train, new_tokenizer=True)
    if door == "resume":
        with pytest.raises(IdentityError):
            prepare_run_dir(out, recipe, swapped, resume=True)
    else:
        prepare_run_dir(out, recipe, swapped, resume=True)
        said = capsys.readouterr().err
        assert all(name in said for name in ("tokenizer.json", *CHAT_FILES[:2], names[1]))
        assert CHAT_FILES[2] not in said
    same = DataFingerprint(lambda _: "stream", write_tokenizer(tmp_path / "same" / "tokenizer.json", *names, indent=4))
    assert same.tokenizer.read_bytes() != theirs.read_bytes()
    prepare_run_dir(out, recipe, same, resume=True)
    said = capsys.readouterr().err
    assert not any(name in said for name in ("tokenizer.json", *CHAT_FILES)), "everything is carried on"
