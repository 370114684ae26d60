"""Chat models: template and end tokens go along with the weights, and generation ends where their answers do."""

from __future__ import annotations

import io
import json
import shutil
import sys
from typing import TYPE_CHECKING, Final

import pytest
import tokenizers
import torch

from mtnlg_model import cli
from mtnlg_model.chat import Chat
from mtnlg_model.checkpoint.chat_files import sampling_defaults
from mtnlg_model.checkpoint.manifest import CHAT_FILES, CheckpointError, read_manifest
from mtnlg_model.checkpoint.reader import Checkpoint, save
from mtnlg_model.console import Failure
from mtnlg_model.convert.huggingface import export_huggingface, import_huggingface
from mtnlg_model.generation.generate import complete
from mtnlg_model.generation.sampling import Sampling
from mtnlg_model.tokenizer import Tokenizer, carried_chat_files

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from transformers import PreTrainedModel

LLAMA: Final = ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
QWEN: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
DEEPSEEK: Final = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>")  # noqa: RUF001  (its spelling)
LLAMA_TEMPLATE: Final = (
    "{{ bos_token }}{% for message in messages %}<|start_header_id|>{{ message.role }}<|end_header_id|>\n\n"
    "{{ message.content | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
QWEN_TEMPLATE: Final = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SIZES: Final = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "intermediate_size": 80,
    "tie_word_embeddings": True,
}
CHAT: Final = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "the fox?"}]
KINDS: Final[dict[str, tuple[str, tuple[str, ...], str]]] = {
    "llama 3.2 instruct": ("llama", LLAMA, "<|eot_id|>"),
    "qwen2.5 instruct": ("qwen2", QWEN, "<|im_end|>"),
    "deepseek r1 distilled": ("qwen2", DEEPSEEK, DEEPSEEK[1]),
}
"""Family, special tokens, and the one that ends an answer."""
CLASSES: Final = dict(zip(KINDS, ("PreTrainedTokenizerFast", "Qwen2Tokenizer", "LlamaTokenizerFast"), strict=True))
PROMPT, LENGTH, TOKENIZER = "the quick fox", 20, "tokenizer.json"


def swap(model: PreTrainedModel, a: int, b: int) -> None:
    """Exchange two tokens' rows of the table that embeds and predicts them."""
    table = model.get_input_embeddings().weight
    with torch.no_grad():
        table[[a, b]] = table[[b, a]].clone()


def greedy(model: PreTrainedModel, prompt: Sequence[int], **options: object) -> list[int]:
    ids = torch.tensor([list(prompt)])
    made = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=LENGTH, do_sample=False, pad_token_id=0, **options
    )
    new: list[int] = made[0, len(prompt) :].tolist()
    return new


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(kind: str, tokenizer_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small chat model as its maker publishes it, which ends its answer to `PROMPT` after a few tokens."""
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("chat")
    family, special, end = KINDS[kind]
    tokenizer = tokenizers.Tokenizer.from_file(str(tokenizer_path))
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = []  # without the fixture's own end token
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(content))
    tokenizer.add_special_tokens(list(special))
    tokenizer.save(str(folder / "tokenizer.json"))
    numbers = {name: tokenizer.token_to_id(name) or 0 for name in special}
    prompt = tokenizer.encode(PROMPT).ids
    config = AutoConfig.for_model(
        family, **SIZES, vocab_size=307, bos_token_id=None, eos_token_id=None, initializer_range=0.3
    )
    for seed in range(20):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config).eval()
        new = greedy(model, prompt, eos_token_id=None)
        fresh = [n for n in range(3, 12) if new[n] not in {*new[:n], *prompt} and new[n] not in numbers.values()]
        if fresh and not set(numbers.values()) & set(new[: fresh[0]]):
            swap(model, new[fresh[0]], numbers[end])
            break
    model.config.eos_token_id = numbers[end]
    model.save_pretrained(folder)
    ends = [numbers[end]] if len(special) == 2 else [numbers[special[1 if family == "llama" else 0]], numbers[end]]
    (folder / "generation_config.json").write_text(
        json.dumps({"eos_token_id": ends, "bos_token_id": numbers[special[0]], "temperature": 0.6})
    )
    settings: dict[str, object] = {"tokenizer_class": CLASSES[kind], "model_max_length": 64}
    settings |= {"auto_map": {"AutoTokenizer": ["tokenization_chat.ChatTokenizer", None]}}
    settings |= {"bos_token": special[0] if family == "llama" or len(special) == 2 else None}
    settings |= {"eos_token": {"__type": "AddedToken", "content": end, "special": True}}
    if family == "llama":
        (folder / "chat_template.jinja").write_text(LLAMA_TEMPLATE)
    else:
        settings["chat_template"] = QWEN_TEMPLATE
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture(scope="module")
def imported(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("imported") / "checkpoint"
    import_huggingface(folder, target)
    return target


def test_a_chat_model_ends_its_answers_here_and_once_exported(kind: str, folder: Path, imported: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    end = KINDS[kind][2]
    theirs, prompt = AutoTokenizer.from_pretrained(folder), tokenizers.Tokenizer.from_file(str(folder / TOKENIZER))
    prompt_ids = prompt.encode(PROMPT).ids
    expected = greedy(AutoModelForCausalLM.from_pretrained(folder), prompt_ids)
    assert expected[-1] == prompt.token_to_id(end)
    assert 3 < len(expected) < LENGTH

    checkpoint = Checkpoint.open(imported)
    tokenizer = Tokenizer(checkpoint.tokenizer_path)
    special = KINDS[kind][1]
    assert tokenizer.eod_token == (end if special == DEEPSEEK else special[1] if special == LLAMA else special[0])
    assert tokenizer.bos_token == (special[0] if special != QWEN else tokenizer.eod_token)
    (text,) = complete(checkpoint.decoder(), tokenizer, [PROMPT], LENGTH)
    assert text == tokenizer.decode(expected[:-1])

    exported = imported.with_name(f"{imported.name}-exported")
    export_huggingface(checkpoint, exported)
    assert greedy(AutoModelForCausalLM.from_pretrained(exported), prompt_ids) == expected
    ours = AutoTokenizer.from_pretrained(exported)
    for options in ({"add_generation_prompt": True}, {"add_generation_prompt": False}):
        assert ours.apply_chat_template(CHAT, tokenize=False, **options) == theirs.apply_chat_template(
            CHAT, tokenize=False, **options
        )
    assert ours.encode(PROMPT, add_special_tokens=False) == tokenizer.encode(PROMPT)
    given, back = (json.loads((place / "tokenizer_config.json").read_text()) for place in (folder, exported))
    assert given.pop("auto_map")
    assert back == given | {"tokenizer_class": "PreTrainedTokenizerFast"}
    for name in CHAT_FILES[:2]:
        assert (exported / name).exists() == (folder / name).exists()
        if (folder / name).exists():
            assert (exported / name).read_bytes() == (imported / name).read_bytes() == (folder / name).read_bytes()
    # Without generation_config.json, transformers goes by config.json.
    (exported / "generation_config.json").unlink()
    assert greedy(AutoModelForCausalLM.from_pretrained(exported), prompt_ids) == expected


def test_generate_answers_a_chat(
    folder: Path, imported: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The prompt is what transformers makes of the messages, of which the user's is the standard input."""
    from transformers import AutoTokenizer

    checkpoint = Checkpoint.open(imported)
    tokenizer = Tokenizer(checkpoint.tokenizer_path)
    template = AutoTokenizer.from_pretrained(folder).apply_chat_template
    texts = [template(chat, tokenize=False, add_generation_prompt=True) for chat in (CHAT, CHAT[1:])]
    assert [Chat.read([imported]).render(chat) for chat in (CHAT, CHAT[1:])] == texts
    fits = len(tokenizer.encode(texts[0])) < checkpoint.config.sequence
    prompt = tokenizer.encode(texts[0] if fits else texts[1])
    (expected,) = complete(checkpoint.decoder(), tokenizer, [prompt], 9, Sampling(repetition_penalty=1.7))
    monkeypatch.setattr(sys, "stdin", io.StringIO(CHAT[1]["content"]))
    options = ["--system", CHAT[0]["content"]] if fits else []
    options += ["--chat", "--tokens", "9", "--repetition-penalty", "1.7"]
    monkeypatch.setattr(sys, "argv", ["mtnlg-model", "generate", str(imported), *options])
    with pytest.raises(SystemExit):
        cli.main()
    assert capsys.readouterr().out == f"{expected}\n"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"temperature": 0.6, "top_k": 20}, {}),
        ({"do_sample": True}, {"temperature": 1.0, "top_k": 50}),
        ({"do_sample": True, "temperature": 0.6, "top_k": 0, "top_p": 0.9, "min_p": 0.1}, None),
        ({"repetition_penalty": 1.1, "num_beams": 4}, {"repetition_penalty": 1.1}),
    ],
)
def test_sampling_defaults_come_from_generation_config(
    content: dict[str, float], expected: dict[str, float] | None, tmp_path: Path
) -> None:
    assert sampling_defaults(tmp_path) == {}
    (tmp_path / "generation_config.json").write_text(json.dumps(content))
    assert sampling_defaults(tmp_path) == (
        {"temperature": 0.6, "top_p": 0.9, "min_p": 0.1} if expected is None else expected
    )


def test_the_files_are_listed_and_verified(imported: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(imported, tmp_path / "copy")
    assert {"generation_config.json", "tokenizer_config.json"} <= read_manifest(copy).files.keys()
    Checkpoint.open(copy).verify()
    content = (copy / "generation_config.json").read_text()
    (copy / "generation_config.json").write_text(content.replace("0.6", "0.7"))
    with pytest.raises(CheckpointError, match=r"generation_config\.json: checksum differs from manifest\.json"):
        Checkpoint.open(copy).verify()
    (copy / "generation_config.json").unlink()
    with pytest.raises(CheckpointError, match=r"generation_config\.json: No such file"):
        _ = Checkpoint.open(copy).tokenizer_path


def test_chat_files_need_a_tokenizer_of_the_same_tokens(imported: Path, tokenizer_path: Path, tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(imported)
    path = save(checkpoint.decoder(), tmp_path, 1, checkpoint.progress, checkpoint.tokenizer_path)
    assert Tokenizer(Checkpoint.open(path).tokenizer_path).ends == Tokenizer(checkpoint.tokenizer_path).ends
    Checkpoint.open(path).verify()
    longer = tokenizers.Tokenizer.from_file(str(imported / TOKENIZER))
    longer.add_special_tokens(["<|another|>"])
    longer.save(str(tmp_path / TOKENIZER))
    others = (path / TOKENIZER, tmp_path / TOKENIZER, tokenizer_path)
    same, more, other = (carried_chat_files(imported, tokenizer).files for tokenizer in others)
    assert same == more != other == {}


HOSTILE: Final = {
    "a number beyond any": ("generation_config.json", '{"eos_token_id": 1%s}' % ("0" * 30), "eos_token_id"),
    "below zero": ("generation_config.json", '{"eos_token_id": -1}', "eos_token_id"),
    "of another type": ("generation_config.json", '{"eos_token_id": "2"}', "eos_token_id"),
    "true": ("generation_config.json", '{"eos_token_id": true}', "eos_token_id"),
    "not a table": ("generation_config.json", "[1]", "generation_config.json: "),
    "not JSON": ("tokenizer_config.json", "{", "tokenizer_config.json: "),
    "half of a surrogate pair": ("tokenizer_config.json", '{"x": "\\ud800"}', "tokenizer_config.json: Invalid JSON"),
    "nested": ("generation_config.json", "[" * 100_000, "generation_config.json: "),
    "a name of another type": ("tokenizer_config.json", '{"eos_token": 7}', "eos_token"),
    "a token without content": ("tokenizer_config.json", '{"eos_token": {"lstrip": true}}', "eos_token"),
    "too large": ("chat_template.jinja", "x" * ((16 << 20) + 1), "the limit for such a file or line"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_file_is_one_line_before_anything_is_written(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], case: str
) -> None:
    name, text, message = HOSTILE[case]
    copy = shutil.copytree(folder, tmp_path / "hostile")
    (copy / name).write_text(text)
    monkeypatch.setattr(sys, "argv", ["mtnlg-model", "import", str(copy), str(tmp_path / "out")])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    error = capfd.readouterr().err
    assert (ended.value.code, error.count("\n")) == (1, 1), error
    assert str(copy / name) in error
    assert message in error
    assert not (tmp_path / "out").exists()


def test_unknown_stop_tokens_are_ignored(folder: Path, tmp_path: Path, kind: str) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / "generation_config.json").write_text('{"eos_token_id": [9999]}')
    (copy / "tokenizer_config.json").write_text('{"eos_token": "<|nowhere|>"}')
    if kind.startswith("deepseek"):
        with pytest.raises(Failure, match="no end token"):
            Tokenizer(copy / TOKENIZER)
    else:
        tokenizer = Tokenizer(copy / TOKENIZER)
        assert tokenizer.ends == {tokenizer.eod}
