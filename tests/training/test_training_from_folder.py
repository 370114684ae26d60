"""A run starts from a Hugging Face folder where it lies, with the folder's model, and its export is of that model."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import transformers

from mtnlg_data.stream import open_stream
from mtnlg_model.checkpoint.reader import Checkpoint
from mtnlg_model.compare import TRAINING_ONLY, differences
from mtnlg_model.convert.config_json import read_config
from mtnlg_model.convert.huggingface import export_huggingface, import_huggingface
from mtnlg_model.initialization import initial_value
from mtnlg_parallel.identity import IdentityError
from mtnlg_parallel.initial import initial_weights
from mtnlg_parallel.recipe import Recipe
from mtnlg_parallel.recipe_file import load_recipe
from mtnlg_parallel.record.metrics import read_steps
from mtnlg_parallel.record.run_dir import prepare_run_dir
from mtnlg_parallel.training.samples import micro_batches, open_data
from training.reference_loop import FP32, RunRanks
from training.test_training_chat_models import NAMES, write_tokenizer

ROWS = Path(__file__).parents[2] / "packages" / "mtnlg-eval" / "tests" / "rows"
TOKENS = 70  # more than the data's 64, and no multiple of 4
SMALL: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
LLAMA = SMALL | {"num_key_value_heads": 2, "intermediate_size": 32, "max_position_embeddings": 8, "vocab_size": TOKENS}
CONFIGS = {
    "gpt2": transformers.GPT2Config(n_embd=16, n_layer=2, n_head=4, n_positions=8, vocab_size=TOKENS),
    "llama": transformers.LlamaConfig(**LLAMA),
    "qwen3": transformers.Qwen3Config(**LLAMA, head_dim=8),
    "gemma2": transformers.Gemma2Config(**LLAMA, head_dim=8, sliding_window=4, query_pre_attn_scalar=8),
    "olmo2": transformers.Olmo2Config(**LLAMA),
}
TRAIN = """
[model]
dropout = 0.0
attention_dropout = 0.0

[layout]
tp = 2
pp = 2

[train]
samples = 32
batch = 8
micro_batch = 2
lr = 1e-3
"""


@pytest.fixture(scope="module")
def data(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data with a tokenizer of ``NAMES``."""
    copy = shutil.copytree(data, tmp_path_factory.mktemp("data") / "named")
    write_tokenizer(copy / "tokens" / "tokenizer.json", *NAMES)
    return copy


@pytest.fixture(params=CONFIGS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder as ``save_pretrained`` writes it, whose tokenizer is that of the data."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[request.param])
    model.save_pretrained(tmp_path / "hf")
    write_tokenizer(tmp_path / "hf" / "tokenizer.json", *NAMES)
    return tmp_path / "hf"


def recipe_from(folder: Path, *overrides: str, train: str = TRAIN, data: Path | None = None) -> Recipe:
    """The recipe that ``mtnlg-parallel train RECIPE --from FOLDER`` trains."""
    path = folder.parent / "train.toml"
    path.write_text(train)
    return load_recipe(path, [initial_weights(folder, path.parent / "none"), *overrides], data)


@pytest.mark.parametrize(
    ("folder", "engine", "precision"),
    [*((name, "pipeline", "fp32") for name in CONFIGS), ("gpt2", "deepspeed", "bf16"), ("llama", "pipeline", "bf16")],
    indirect=["folder"],
)
def test_run_from_a_folder_equals_run_from_its_import(  # noqa: PLR0917  (two are the cases)
    run_ranks: RunRanks, data: Path, folder: Path, tmp_path: Path, engine: str, precision: str
) -> None:
    import_huggingface(folder, tmp_path / "imported", vocabulary_multiple=128)
    words = (f"train.engine={engine}", f"train.precision={precision}")
    recipes = [recipe_from(place, *words) for place in (folder, tmp_path / "imported")]
    assert [recipe.model.vocabulary for recipe in recipes] == [128, 128]
    outs = [tmp_path / "in place", tmp_path / "from import"]
    run_ranks("train", recipes, data=data, outs=outs)
    losses = [[(step["loss"], step["grad_norm"]) for step in read_steps(out)] for out in outs]
    assert losses[0] == losses[1]
    if precision == "fp32":
        first = first_loss(transformers.AutoModelForCausalLM.from_pretrained(folder), data, 8)
        assert losses[0][0][0] == pytest.approx(first, rel=FP32)
    export_huggingface(Checkpoint.open(outs[0] / "checkpoints"), tmp_path / "exported")
    assert not differences(read_config(tmp_path / "exported"), read_config(folder), TRAINING_ONLY)
    assert transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "exported").config.vocab_size == TOKENS


@pytest.mark.parametrize("folder", ["llama"], indirect=True)
@pytest.mark.parametrize(("imports", "tokens"), [(False, 72), (True, 130)])
def test_tokens_of_a_new_tokenizer_get_rows(  # noqa: PLR0917  (two are the cases)
    run_ranks: RunRanks, data: Path, folder: Path, tmp_path: Path, imports: bool, tokens: int
) -> None:
    """In padding and beyond it, from a folder and from a checkpoint, and the export has them."""
    place = folder
    if imports:
        import_huggingface(folder, place := tmp_path / "imported")
    data = shutil.copytree(data, tmp_path / "data")
    tokenizer = tokenizers.Tokenizer.from_file(str(data / "tokens" / "tokenizer.json"))
    tokenizer.add_special_tokens([f"<|{n}|>" for n in range(64, tokens)])
    tokenizer.save(str(data / "tokens" / "tokenizer.json"))
    blend = data / "tokens" / "blend.json"
    blend.write_text(json.dumps(json.loads(blend.read_bytes()) | {"vocabulary": tokens}))
    recipe = recipe_from(place, "train.new_tokenizer=true", "train.lr=1e-9", "train.precision=fp32", data=data)
    assert (recipe.model.tokens, recipe.model.vocabulary) == (tokens, 128 if tokens < 128 else 256)
    run_ranks("train", [recipe], data=data, outs=[tmp_path / "out"])
    export_huggingface(Checkpoint.open(tmp_path / "out" / "checkpoints"), tmp_path / "exported")
    before, after = (
        transformers.AutoModelForCausalLM.from_pretrained(place) for place in (folder, tmp_path / "exported")
    )
    for name, ours in (("model.embed_tokens", "embedding.token.weight"), ("lm_head", "head.weight")):
        new = initial_value(recipe.model, ours, recipe.train.seed)[TOKENS:tokens]
        expected = torch.cat((before.get_submodule(name).weight, new))
        torch.testing.assert_close(after.get_submodule(name).weight, expected, rtol=0, atol=1e-6)


def first_loss(model: transformers.PreTrainedModel, data: Path, sequence: int) -> float:
    """Of the first step's 8 samples."""
    inputs, targets, *_ = next(micro_batches(open_stream(data / "tokens", sequence), range(8), 8, 1, 0))
    with torch.no_grad():
        return float(torch.nn.functional.cross_entropy(model(inputs).logits.flatten(0, 1), targets.flatten()))


@pytest.mark.parametrize("folder", ["llama"], indirect=True)
def test_longer_context_by_yarn(run_ranks: RunRanks, data: Path, folder: Path, tmp_path: Path) -> None:
    """Twice the sequence, with wavelengths stretched as the recipe asks, in training and in the exported model."""
    scaling = ("factor=2.0", "original_sequence=8", "beta_fast=2.0", "attention_factor=1.1")
    words = ("train.precision=fp32", "model.sequence=16", *(f"model.rotary_scaling.{each}" for each in scaling))
    recipe = recipe_from(folder, *words)
    run_ranks("train", [recipe], data=data, outs=[tmp_path / "out"])
    export_huggingface(Checkpoint.open(tmp_path / "out" / "checkpoints"), tmp_path / "exported")
    config = transformers.AutoConfig.from_pretrained(tmp_path / "exported")
    assert (config.max_position_embeddings, config.rope_parameters["rope_type"]) == (16, "yarn")
    assert (config.rope_parameters["factor"], config.rope_parameters["attention_factor"]) == (2.0, 1.1)
    first = first_loss(transformers.AutoModelForCausalLM.from_pretrained(folder, config=config), data, 16)
    assert next(read_steps(tmp_path / "out"))["loss"] == pytest.approx(first, rel=FP32)


def test_each_tensor_is_converted_once(run_ranks: RunRanks, folder: Path) -> None:
    for engine in ("pipeline", "deepspeed"):
        for rank in run_ranks("conversions", [recipe_from(folder, f"train.engine={engine}")], out=folder):
            assert set(rank["times"].values()) == {1}


def test_recipe_over_the_model_of_a_folder(data: Path, folder: Path, tmp_path: Path) -> None:
    """Dropout and the reach of rotary positions are the recipe's; everything else is compared."""
    assert recipe_from(folder, "model.dropout=0.1").model.dropout == 0.1
    longer, other = recipe_from(folder, "model.sequence=16"), recipe_from(folder, "model.layer_norm_eps=0.5")
    for recipe, is_refused in ((longer, recipe_from(folder).model.positions == "learned"), (other, True)):
        fingerprint = open_data(data, recipe).fingerprint
        if is_refused:
            with pytest.raises(IdentityError):
                prepare_run_dir(tmp_path / "out", recipe, fingerprint, resume=True)
        else:
            prepare_run_dir(tmp_path / "out", recipe, fingerprint, resume=True)


def test_continue_llama_recipe(tmp_path: Path) -> None:
    """The commands at the head of recipes/continue-llama, on a small Llama made here."""
    recipe = shutil.copytree(Path(__file__).parents[2] / "recipes" / "continue-llama", tmp_path / "mine")
    names = ["<|begin_of_text|>", "<|end_of_text|>"]
    texts = [
        f"{number} and {number + 1} are {2 * number + 1}, which {number % 7} does not change." for number in range(300)
    ]
    trained = tokenizers.ByteLevelBPETokenizer()
    trained.train_from_iterator(texts, 400, special_tokens=names)
    config = transformers.LlamaConfig(
        **SMALL, num_key_value_heads=2, intermediate_size=32, max_position_embeddings=8192, vocab_size=400
    )
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(recipe / "llama")
    trained.save(str(recipe / "llama" / "tokenizer.json"))
    (recipe / "llama" / "tokenizer_config.json").write_text(json.dumps({"bos_token": names[0], "eos_token": names[1]}))
    (recipe / "documents").mkdir()
    lines = [json.dumps({"text": " ".join(texts[number::30]) * 9}) for number in range(30)]
    (recipe / "documents" / "own.jsonl").write_text("\n".join(lines))
    small = ("model.sequence=192", "train.samples=16", "train.batch=8", "train.warmup=0", "train.validation_samples=8")
    for words in (
        ("mtnlg-data", "run", ".", "--out", "data"),
        (
            "mtnlg-parallel",
            "train",
            ".",
            "--data",
            "data",
            "--out",
            "run",
            "--from",
            "llama",
            *(f"--set={one}" for one in small),
        ),
        ("mtnlg-model", "export", "run/checkpoints", "continued"),
        ("mtnlg-eval", "run", "continued", "--out", "scores", "--data", ROWS, "--tasks", "hans", "--shots", "0"),
    ):
        subprocess.run([Path(sys.executable).with_name(words[0]), *words[1:]], cwd=recipe, check=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(recipe / "continued")
    assert (model.config.vocab_size, len([*read_steps(recipe / "run")])) == (400, 2)
    assert transformers.AutoTokenizer.from_pretrained(recipe / "continued").eos_token == names[1]
    assert json.loads((recipe / "scores" / "results.json").read_bytes())["scores"]
