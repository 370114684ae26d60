"""Generation: greedy or sampled, stored, and batched so that neither order nor stored texts change a text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import tokenizers
import torch
from lm_eval.api.instance import Instance

from mtnlg_eval.scoring.decoder_lm import DecoderLM, LocalEngine
from mtnlg_eval.scoring.generation import Options, Prompt
from mtnlg_eval.scoring.open_model import open_lm, open_model
from mtnlg_model.console import Failure
from mtnlg_model.generation.generate import generate
from mtnlg_model.generation.sampling import GREEDY, Sampling

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from mtnlg_model.checkpoint.reader import Checkpoint


class Recording:
    """Records the batches that an engine generates, and dies after ``dies_after`` of them."""

    def __init__(self, lm: DecoderLM, dies_after: int = 1_000) -> None:
        self.batches: list[Sequence[Prompt]] = []
        self._generate, self._dies_after = lm.engine.generate, dies_after
        lm.engine.generate = self  # type: ignore[method-assign]

    def __call__(self, batches: Iterable[Sequence[Prompt]]) -> Iterator[list[list[int]]]:
        return self._generate(map(self._record, batches))

    def _record(self, batch: Sequence[Prompt]) -> Sequence[Prompt]:
        if len(self.batches) == self._dies_after:
            raise KeyboardInterrupt
        self.batches.append(batch)
        return batch


def test_killed_generation_resumes_missing_batches(checkpoint: Checkpoint, tmp_path: Path) -> None:
    options = {"until": ["\n"], "max_gen_toks": 3}
    requests = [Instance("generate_until", {}, ("word " * (n % 7 + 1), options), n) for n in range(40)]
    whole = open_lm(open_model(checkpoint.directory))
    every = Recording(whole)
    expected = whole.generate_until(requests)
    killed = open_lm(open_model(checkpoint.directory), tmp_path / "scores.sqlite")
    Recording(killed, dies_after=1)
    with pytest.raises(KeyboardInterrupt):
        killed.generate_until(requests)
    again = open_lm(open_model(checkpoint.directory), tmp_path / "scores.sqlite")
    rest = Recording(again)
    assert again.generate_until(requests) == expected
    assert rest.batches == every.batches[1:]


def test_draws_come_once_and_in_order(checkpoint: Checkpoint, tmp_path: Path) -> None:
    requests = [
        (prompt, 3, Options((), 4, Sampling(temperature=1, seed=seed))) for prompt in ("The", "A") for seed in (1, 2)
    ]
    lm = open_lm(open_model(checkpoint.directory), tmp_path / "scores.sqlite")
    one_by_one = [next(lm.sample([request])) for request in requests[::2]]
    recorded = Recording(lm)
    together = list(lm.sample(requests))
    assert together[::2] == one_by_one
    assert together[1] != together[0]
    assert [batch[0].options.sampling.seed for batch in recorded.batches] == [2, 2]


def test_generation_is_greedy_until_a_stop_and_kept(checkpoint: Checkpoint) -> None:
    lm = open_lm(open_model(checkpoint.directory))
    requests = [
        Instance("generate_until", {}, (prompt, {"until": ["\n\n"], "max_gen_toks": 12}), 0)
        for prompt in ("The cook", "Question: who slept?\nAnswer:", "The cook")
    ]
    first = lm.generate_until(requests)
    assert first[0] == first[2]
    assert isinstance(lm.engine, LocalEngine)
    ids = lm.tok_encode("The cook")
    for _ in range(12):
        logits = lm.engine.decoder(torch.tensor([ids]))[0, -1, :500]
        ids.append(int(logits.argmax()))
    expected = lm._tokenizer.decode(ids[len(lm.tok_encode("The cook")) :])
    assert first[0] == expected.split("<|endoftext|>")[0].split("\n\n")[0]
    recorded = Recording(lm)
    assert lm.generate_until(requests) == first
    assert not recorded.batches


def test_foreign_options_without_effect_are_accepted() -> None:
    plain = Options.parse({"until": ["\n"], "max_gen_toks": 9})
    for name in ("max_new_tokens", "max_tokens", "max_completion_tokens"):
        assert Options.parse({"until": "\n", name: 9, "num_beams": 1, "repetition_penalty": 1.0}) == plain
    assert Options.parse({"temperature": 0.7}).sampling.temperature == 0.7  # as lm-eval takes it
    assert Options.parse({"temperature": 0.7, "do_sample": False}).sampling == GREEDY
    with pytest.raises(Failure, match="generation option num_beams = 3: only 1 is supported"):
        Options.parse({"num_beams": 3})
    with pytest.raises(
        Failure, match="generation option min_p: unknown; use do_sample, max_completion_tokens, max_gen_toks"
    ):
        Options.parse({"min_p": 0.1})


def test_prompt_is_cut_from_the_left_for_new_tokens(checkpoint: Checkpoint) -> None:
    """As in lm-eval's hf backend, which refuses what leaves no room."""
    context = list(range(20))
    assert Prompt.parse(context, {"max_gen_toks": 9}, 12) == Prompt((17, 18, 19), Options((), 9, GREEDY), cut=True)
    assert not Prompt.parse(context, {"max_gen_toks": 9}, 29).cut
    with pytest.raises(Failure, match="max_gen_toks = 12: no room for a prompt in 12 tokens of context"):
        Prompt.parse(context, {"max_gen_toks": 12}, 12)
    lm = open_lm(open_model(checkpoint.directory))
    requests = [Instance("generate_until", {}, ("word " * n, {"max_gen_toks": 250}), n) for n in (1, 9)]
    lm.generate_until(requests)
    assert lm.cut == {id(requests[1])}


def test_sampled_text_depends_only_on_prompt_seed_and_repeat(checkpoint: Checkpoint) -> None:
    """Neither on what else is asked for, nor on the batch."""

    def texts(seed: int, prompts: Sequence[str], repeats: int = 1) -> list[str]:
        options = {"do_sample": True, "temperature": 1.0, "max_gen_toks": 12, "seed": seed}
        requests = [Instance("generate_until", {}, (prompt, options), n) for n, prompt in enumerate(prompts)]
        return open_lm(open_model(checkpoint.directory)).generate_until(
            [each for each in requests for _ in range(repeats)]
        )

    prompts = [f"The {n}" for n in range(40)]
    whole = texts(1, prompts)
    assert texts(1, prompts[30:35]) == whole[30:35]
    assert texts(1, prompts[::-1]) == whole[::-1]
    assert len(set(texts(1, prompts[:1], 8))) > 6
    assert set(texts(2, prompts)).isdisjoint(whole)
    assert texts(1, [*prompts[:2], *prompts[:2]], 2)[4:] == texts(1, prompts[:2], 2)  # rows of one prompt: --limit cuts


def test_special_tokens_are_left_out_of_a_text(checkpoint: Checkpoint) -> None:
    named = tokenizers.Tokenizer.from_file(str(checkpoint.tokenizer_path))
    lm = open_lm(open_model(checkpoint.directory))
    request = Instance("generate_until", {}, ("The cook", {"max_gen_toks": 12}), 0)
    assert isinstance(lm.engine, LocalEngine)
    ((*tokens,),) = generate(lm.engine.decoder, [lm.tok_encode("The cook")], 12, vocabulary=500)
    special = tokens[3]
    lm._special = {special}
    assert lm.generate_until([request]) == [named.decode([token for token in tokens if token != special])]
