"""Generation against transformers' ``generate`` and its samplers, on the same weights."""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import tokenizers
import torch
from test_decoder import KERNELS
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from mtnlg_model.config import ModelConfig
from mtnlg_model.console import Failure
from mtnlg_model.decoder import Decoder
from mtnlg_model.generation import generate as generation
from mtnlg_model.generation.generate import complete, generate
from mtnlg_model.generation.sampling import Sampling, draw_tokens, probabilities, row_generators
from mtnlg_model.tokenizer import Tokenizer

Build = Callable[[ModelConfig], Decoder]
FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
CONFIG = ModelConfig(layers=2, hidden=32, heads=4, sequence=40, vocabulary=101, init_std=0.2)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=0.7),
        Sampling(temperature=1.3, top_k=9),
        Sampling(temperature=1.0, top_p=0.8),
        Sampling(temperature=1.5, top_k=30, top_p=0.5),
        Sampling(temperature=0.2, top_p=0.01),
        Sampling(temperature=1.0, top_k=1000),
        Sampling(temperature=1.5, min_p=0.2),
        Sampling(temperature=1.5, top_k=30, top_p=0.9, min_p=0.4),
    ],
)
def test_the_distribution_is_that_of_transformers_samplers(sampling: Sampling) -> None:
    logits_BV = torch.randn(16, 101, generator=torch.Generator().manual_seed(1)) * 3
    warpers = LogitsProcessorList([TemperatureLogitsWarper(sampling.temperature)])
    if sampling.top_k:
        warpers.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        warpers.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p:
        warpers.append(MinPLogitsWarper(sampling.min_p))
    expected_BV = torch.softmax(warpers(None, logits_BV), dim=-1)
    torch.testing.assert_close(probabilities(logits_BV, sampling), expected_BV, rtol=1e-5, atol=1e-7)


def test_a_repetition_penalty_counts_the_prompt_and_what_is_new(biased: Build) -> None:
    """Of every row its own tokens, also when another row has ended; as transformers computes it."""
    decoder, sampling, prompts = biased(CONFIG), Sampling(repetition_penalty=1.8), [[3, 4, 5], [7, 9], [2, 2, 2, 2]]
    expected = []
    for prompt in prompts:
        tokens = list(prompt)
        for _ in range(9):
            with torch.no_grad():
                logits_1V = decoder(torch.tensor([tokens]))[:, -1]
            tokens.append(int(RepetitionPenaltyLogitsProcessor(1.8)(torch.tensor([tokens]), logits_1V).argmax()))
        expected.append(tokens[len(prompt) :])
    assert generate(decoder, prompts, 9, sampling) == expected
    ended = generate(decoder, prompts, 9, sampling, stop_condition=lambda new: new[0] == expected[1][0])
    assert ended[1] == expected[1][:1]
    assert ended[2] == expected[2]


def test_draws_follow_the_distribution(biased: Build) -> None:
    decoder = biased(CONFIG)
    sampling = Sampling(temperature=1.0, top_k=5)
    n = 4000
    counts = Counter(row[0] for row in generate(decoder, [[3, 4]] * n, 1, sampling))
    with torch.no_grad():
        p_V = probabilities(decoder(torch.tensor([[3, 4]]))[:, -1], sampling)[0]
    assert set(counts) <= {int(token) for token in p_V.nonzero()}
    # Pearson's statistic of 4 degrees of freedom exceeds 23.5 once in 10,000 seeds.
    assert sum((counts[int(t)] - n * p_V[t]) ** 2 / (n * p_V[t]) for t in p_V.nonzero()) < 23.5


def test_the_seed_decides_and_rows_draw_apart(biased: Build) -> None:
    decoder = biased(CONFIG)
    first, again, other = (generate(decoder, [[1, 2]] * 2, 12, Sampling(temperature=1.0, seed=s)) for s in (4, 4, 5))
    assert first == again
    assert first != other
    assert first[0] != first[1]


def test_generation_never_samples_padding_ids(biased: Build) -> None:
    decoder = biased(CONFIG)
    assert max(generate(decoder, [[1]], 30)[0]) >= 20
    for sampling in (Sampling(), Sampling(temperature=2.0)):
        assert max(generate(decoder, [[1]], 30, sampling, vocabulary=20)[0]) < 20


def test_generation_ends_where_the_sequence_is_full(biased: Build) -> None:
    decoder = biased(CONFIG)
    assert len(generate(decoder, [[1] * 30], 1000)[0]) == 11
    assert len(generate(decoder, [[1] * 40], 1000)[0]) == 1
    with pytest.raises(Failure, match="prompt 1 has 41 tokens; the model reads 40"):
        generate(decoder, [[1], [1] * 41], 5)
    with pytest.raises(Failure, match="prompt 0 is empty"):
        generate(decoder, [[]], 5)
    with pytest.raises(Failure, match="prompt 0 has a token outside the vocabulary of 101"):
        generate(decoder, [[101]], 5)
    assert generate(decoder, [], 5) == []


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0)])
def test_long_prompt_does_not_shorten_other_completions(biased: Build, sampling: Sampling) -> None:
    decoder = biased(CONFIG)
    prompts = [[5], [8, 9, 10] * 12, [3] * 40, [1, 2, 3]]
    together = generate(decoder, prompts, 30, sampling)
    assert [len(new) for new in together] == [30, 5, 1, 30]
    assert together[0] == generate(decoder, prompts[:1], 30, sampling)[0]
    if sampling.temperature == 0:  # a row's random numbers are those of its place
        assert together == [generate(decoder, [prompt], 30)[0] for prompt in prompts]
    assert [len(new) for new in generate(decoder, prompts, 1000, sampling)] == [40, 5, 1, 38]


def test_windows_of_unlike_prompts_take_less_work(biased: Build) -> None:
    """To the same tokens as each prompt alone; the counter takes half of a mask as computed, too."""
    prompts, work = [[8, 9, 10] * 20, [1, 2, 3] * 100], []
    for by_layer in ([{"window": 20}], []):
        decoder = biased(CONFIG.model_copy(update={"sequence": 400, "by_layer": by_layer}))
        with FlopCounterMode(display=False, custom_mapping=KERNELS) as counter:
            together = generate(decoder, prompts, 3)
        assert together == [generate(decoder, [prompt], 3)[0] for prompt in prompts]
        work.append(counter.get_flop_counts()["Global"][FORWARD])
    assert work[0] < 0.6 * work[1]


def test_generation_disables_and_restores_dropout(biased: Build) -> None:
    decoder = biased(CONFIG)
    expected = generate(decoder, [[1, 2]], 20)
    decoder.train()
    assert generate(decoder, [[1, 2]], 20) == expected
    assert decoder.training


@pytest.mark.parametrize(("token", "special"), [("</s>", True), ("<|end_of_text|>", True), ("<|endoftext|>", False)])
def test_a_document_ends_with_the_tokenizers_own_end_token(
    tokenizer_path: Path, tmp_path: Path, token: str, special: bool
) -> None:
    content = json.loads(tokenizer_path.read_text())
    content["added_tokens"][-1] |= {"content": token, "special": special}
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content))
    tokenizer = Tokenizer(path)
    assert (tokenizer.eod_token, tokenizer.eod) == (token, tokenizer.vocabulary - 1)
    content["added_tokens"][-1] |= {"content": "<other>"}
    path.write_text(json.dumps(content))
    with pytest.raises(Failure, match=r"no end token \(<\|endoftext\|>, .*add one as a special token"):
        Tokenizer(path)


def scripted(tokens: Sequence[int]) -> Callable[..., Iterator[tuple[int, int]]]:
    """A stream that draws these tokens until it is to stop."""

    def stream(*_: object, stop_condition: Callable[[Sequence[int]], bool], **__: object) -> Iterator[tuple[int, int]]:
        for number, token in enumerate(tokens, 1):
            yield 0, token
            if stop_condition(tokens[:number]):
                return

    return stream


def test_stream_never_shows_text_that_stop_removes(
    monkeypatch: pytest.MonkeyPatch, biased: Build, tokenizer_path: Path
) -> None:
    tokenizer, decoder = Tokenizer(tokenizer_path), biased(CONFIG)
    monkeypatch.setattr(generation, "stream_tokens", scripted(tokenizer.encode("one 🦊 T THE END of it")))
    shown = list(generation.stream_text(decoder, tokenizer, "", 99, stop=["THE END", "never"]))
    assert "".join(shown) == "one 🦊 T "
    assert "one" in "".join(shown[:5])


def test_streaming_decodes_a_number_of_tokens_that_is_linear(
    monkeypatch: pytest.MonkeyPatch, biased: Build, tokenizer_path: Path
) -> None:
    tokenizer, decoder, decoded = Tokenizer(tokenizer_path), biased(CONFIG), list[int]()
    text = "the quick 🦊 and the dog " * 40
    tokens = tokenizer.encode(text)
    decode = tokenizer.decode

    def counted(tokens: Sequence[int]) -> str:
        decoded.append(len(tokens))
        return decode(tokens)

    monkeypatch.setattr(tokenizer, "decode", counted)
    monkeypatch.setattr(generation, "stream_tokens", scripted(tokens))
    assert "".join(generation.stream_text(decoder, tokenizer, "", 99, stop=["never"])) == text
    assert sum(decoded) < 60 * len(tokens)


def begun_by(path: Path, out: Path, number: int | None = None) -> Path:
    """The tokenizer with <s> before every text, as Llama's; ``number`` is another than the token's own."""
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    tokenizer.add_special_tokens(["<s>"])
    begin = tokenizer.token_to_id("<s>") if number is None else number
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", begin)])
    tokenizer.save(str(out))
    return out


def test_document_begins_with_the_tokenizers_prefix(tokenizer_path: Path, tmp_path: Path) -> None:
    plain, begun = Tokenizer(tokenizer_path), Tokenizer(begun_by(tokenizer_path, tmp_path / "tokenizer.json"))
    begin, fox = begun.vocabulary - 1, plain.encode("the fox")
    assert begun.encode("the fox") == fox
    assert [begun.encode_prompt(text) for text in ("the fox", "<s>the fox", "")] == [[begin, *fox]] * 2 + [[begin]]
    assert [plain.encode_prompt(text) for text in ("the fox", "")] == [fox, [plain.eod]]
    with pytest.raises(Failure, match=f"texts begin with token 999 of a vocabulary of {begun.vocabulary}$"):
        Tokenizer(begun_by(tokenizer_path, tmp_path / "tokenizer.json", 999))


def test_completion_includes_the_space_after_the_prompt(
    monkeypatch: pytest.MonkeyPatch, biased: Build, tmp_path: Path
) -> None:
    """SentencePiece's decoders drop the blank with which a text begins, and a completion is none."""
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"▁the": 0, "▁fox": 1, "▁jumps": 2, "<u>": 3}, "<u>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    parts = [tokenizers.decoders.Replace("▁", " "), tokenizers.decoders.Fuse(), tokenizers.decoders.Strip(" ", 1, 0)]
    words.decoder = tokenizers.decoders.Sequence(parts)
    words.add_special_tokens(["</s>"])
    words.save(str(tmp_path / "tokenizer.json"))
    tokenizer, decoder = Tokenizer(tmp_path / "tokenizer.json"), biased(CONFIG)
    monkeypatch.setattr(generation, "stream_tokens", lambda *_, **__: iter([(0, 2), (0, 1), (0, tokenizer.eod)]))
    assert complete(decoder, tokenizer, ["the fox"], 9) == [" jumps fox"]
    assert "".join(generation.stream_text(decoder, tokenizer, "the fox", 9)) == " jumps fox"
    assert complete(decoder, tokenizer, ["the fox"], 9, stop=" fox") == [" jumps"]


@pytest.mark.parametrize(
    ("temperature", "top_p"), [(5e-324, 1.0), (1e-300, 1.0), (1e-39, 1.0), (1.0, 5e-324), (1.0, 1e-46)]
)
def test_options_next_to_zero_take_the_likeliest_token(biased: Build, temperature: float, top_p: float) -> None:
    decoder, sampling = biased(CONFIG), Sampling(temperature=temperature, top_p=top_p)
    assert generate(decoder, [[3, 4], [7]], 8, sampling) == generate(decoder, [[3, 4], [7]], 8)


@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(temperature=0.7), Sampling(temperature=1.0, top_k=2, top_p=0.5)]
)
@pytest.mark.parametrize("logits", [torch.nan, -torch.inf])
def test_one_row_without_numbers_is_enough(sampling: Sampling, logits: float) -> None:
    logits_BV = torch.zeros(3, 8)
    logits_BV[1, 2 if math.isnan(logits) else slice(None)] = logits
    if sampling == Sampling() and not math.isnan(logits):
        assert draw_tokens(logits_BV, sampling, []) == [0, 0, 0]
        return
    with pytest.raises(Failure, match="the model's output is not a number"):
        draw_tokens(logits_BV, sampling, row_generators(sampling, 3))
