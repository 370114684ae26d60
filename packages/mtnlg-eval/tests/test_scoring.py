"""DecoderLM: loglikelihoods equal those of a plain forward pass and of lm-eval's own backend."""

from __future__ import annotations

from collections import deque
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest
import tokenizers
import torch
from hypothesis import given
from hypothesis import strategies as st
from lm_eval.api.instance import Instance
from lm_eval.evaluator import evaluate
from tokenizers.processors import TemplateProcessing

from mtnlg_eval.scoring import decoder_lm as model_module
from mtnlg_eval.scoring.decoder_lm import DecoderLM, LocalEngine
from mtnlg_eval.scoring.open_model import open_lm, open_model
from mtnlg_eval.scoring.packing import Request, Row, plan_rows, take_batch
from mtnlg_eval.tasks.paper_task import paper_task
from mtnlg_eval.tasks.rows import ROWS
from mtnlg_model.checkpoint.reader import Checkpoint, save
from mtnlg_model.config import ModelConfig
from mtnlg_model.console import Failure
from mtnlg_model.decoder import Decoder

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lm_eval.api.model import TemplateLM

    from mtnlg_eval.tasks.paper_task import PaperTask

OURS = Path(__file__).parent / "rows"
LLAMA = {"positions": "rotary", "norm": "rms", "mlp": "swiglu", "bias": False, "qkv_bias": False, "tied": False}
CLOSE = 5e-5  # nats a request, between two orders of the same fp32 sums
STEP = model_module.ROWS_PER_THREAD


@pytest.fixture
def lm(checkpoint: Checkpoint) -> DecoderLM:
    return open_lm(open_model(checkpoint.directory))


def plan_batches(requests: Iterable[Request], longest: int, budget: int) -> list[list[Row]]:
    rows = deque(plan_rows(requests, longest))
    return list(iter(partial(take_batch, rows, budget), []))


def load(name: str, lm: TemplateLM, shots: int) -> PaperTask:
    return paper_task(name, OURS).with_shots(lm, shots)


def decoder_of(lm: DecoderLM) -> Decoder:
    assert isinstance(lm.engine, LocalEngine)
    return lm.engine.decoder


def plain(lm: DecoderLM, context: Sequence[int], answer: Sequence[int]) -> tuple[float, bool]:
    """One request by itself through the whole decoder: no batch, no packing, full logits."""
    read = [*context, *answer][-(lm.max_length + 1) :][:-1]
    with torch.inference_mode():
        logits_SV = decoder_of(lm)(torch.tensor([read]))[0]
    logp_NV = logits_SV[-len(answer) :].log_softmax(-1)
    logp = logp_NV[torch.arange(len(answer)), torch.tensor(answer)].sum()
    return float(logp), bool((logp_NV.argmax(-1) == torch.tensor(answer)).all())


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("shots", [0, 2])
def test_every_task_matches_lm_evals_hf_backend(name: str, shots: int, lm: DecoderLM, exported: TemplateLM) -> None:
    assert_scored_alike(name, shots, lm, exported)


def test_bos_tokenizer_begins_prompts_as_in_lm_eval(checkpoint: Checkpoint, tmp_path: Path) -> None:
    begins = tokenizers.Tokenizer.from_file(str(checkpoint.tokenizer_path))
    begins.add_special_tokens(["<s>"])
    begins.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", begins.token_to_id("<s>"))])
    begins.save(str(tmp_path / "tokenizer.json"))
    llama = save_llama(checkpoint, tmp_path, tmp_path / "tokenizer.json", vocabulary=501)  # hf may draw padded tokens
    lm, exported = open_lm(open_model(llama.directory)), hf_backend(llama, tmp_path / "model")
    pairs = [
        ("the sailors ", "thanked the cook"),
        ("", "the cook"),
        ("<s>the cook", " sang"),
        ("one\n\ntwo", "\nthree"),
    ]
    requests = [Instance("loglikelihood", {}, pair, 0) for pair in pairs]
    whole = [Instance("loglikelihood_rolling", {}, (text,), 0) for text in ("the cook sang", "a b " * 300)]
    texts = [
        Instance("generate_until", {}, (text, {"until": ["\n"], "max_gen_toks": 9}), 0) for text, _ in pairs if text
    ]
    scores, expected = (
        [logp for logp, _ in each.loglikelihood(requests)] + each.loglikelihood_rolling(whole)
        for each in (lm, exported)
    )
    assert scores == pytest.approx(expected, abs=10 * CLOSE)
    assert [lm.generate_until([text]) for text in texts] == [exported.generate_until([text]) for text in texts]


def save_llama(checkpoint: Checkpoint, folder: Path, tokenizer: Path, **settings: object) -> Checkpoint:
    config = ModelConfig.model_validate({**checkpoint.config.model_dump(), **LLAMA, "kv_heads": 1, **settings})
    progressed = checkpoint.progress
    return Checkpoint.open(save(Decoder(config, seed=3), folder, progressed.step, progressed, tokenizer))


def assert_scored_alike(name: str, shots: int, lm: DecoderLM, exported: TemplateLM) -> None:
    theirs, ours = (load(name, backend, shots) for backend in (exported, lm))
    results = [evaluate(task.lm, {"tasks": {name: task}}, bootstrap_iters=1) for task in (theirs, ours)]
    for our, their in zip(results[1]["samples"][name], results[0]["samples"][name], strict=True):
        assert our["arguments"] == their["arguments"]
        for (logp, greedy), (expected, expected_greedy) in zip(
            our["filtered_resps"], their["filtered_resps"], strict=True
        ):
            assert logp == pytest.approx(expected, abs=CLOSE)
            assert greedy == expected_greedy
    assert results[0]["results"] == results[1]["results"]


@pytest.fixture(scope="module")
def exported(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> TemplateLM:
    """lm-eval's Hugging Face backend over the same weights."""
    return hf_backend(checkpoint, tmp_path_factory.mktemp("exported") / "model")


def hf_backend(checkpoint: Checkpoint, folder: Path) -> TemplateLM:
    from lm_eval.models.huggingface import HFLM

    from mtnlg_model.convert.huggingface import export_huggingface

    export_huggingface(checkpoint, folder)
    return HFLM(pretrained=str(folder), device="cpu", dtype="float32", batch_size=3)


def test_the_paper_scores_by_token_by_ratio_and_by_greedy_words(lm: DecoderLM) -> None:
    for name in ("hellaswag", "race_h", "lambada"):
        task = load(name, lm, 0)
        results = evaluate(lm, {"tasks": {name: task}}, bootstrap_iters=1)
        for sample in results["samples"][name]:
            answers = [lm._encode_pair(*pair)[1] for pair in sample["arguments"]]
            logps = [logp for logp, _ in sample["filtered_resps"]]
            if name == "hellaswag":
                scores = [logp / len(answer) for logp, answer in zip(logps, answers, strict=True)]
            elif name == "race_h":
                assert [pair[0] for pair in sample["arguments"][4:]] == ["Answer:"] * 4
                scores = [logps[n] - logps[4 + n] for n in range(4)]
            else:
                assert sample["acc"] == float(sample["filtered_resps"][0][1])
                continue
            assert task.scores(sample["doc"], sample["filtered_resps"]) == pytest.approx(scores)
            assert sample["acc"] == float(scores.index(max(scores)) == sample["doc"]["label"])


def tokens(most: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(st.integers(0, 499), min_size=1, max_size=most).map(tuple)


def beginnings() -> st.SearchStrategy[tuple[int, ...]]:
    """Contexts of which many begin alike."""
    return st.builds(lambda cut, rest: (0,) * cut + rest, st.integers(0, 24), tokens(2))


@given(
    st.lists(st.builds(Request, beginnings(), tokens(9)), min_size=1, max_size=12),
    st.integers(34, 80),
    st.integers(1, 200),
    st.randoms(),
)
def test_packing_answers_each_request_once_within_limits(
    requests: list[Request], longest: int, budget: int, order: Random
) -> None:
    batches = plan_batches(requests, longest, budget)
    answered = [request for batch in batches for row in batch for request in row.requests]
    assert sorted(answered) == sorted(set(requests))
    for batch in batches:
        lengths = [row.length for row in batch]
        assert max(lengths) <= longest
        assert len(batch) == 1 or sum(lengths) <= budget
    assert plan_batches(order.sample(requests, len(requests)), longest, budget) == batches


def test_common_prefixes_share_a_row() -> None:
    stem = tuple(range(20))
    requests = [Request((*stem, 50), (7, 8, 9)), Request((*stem, 60, 61), (7, 8, 9)), Request((1, 2, 3), (4, 5))]
    (batch,) = plan_batches(requests, 100, 1000)
    assert {row.length: len(row.contexts) for row in batch} == {20 + (1 + 2) + (2 + 2): 2, 3 + 1: 1}
    assert {request for row in batch for request in row.requests} == set(requests)
    (apart,) = plan_batches(requests, 26, 1000)
    assert max(row.length for row in apart) == 20 + 2 + 2


def test_score_is_bitwise_independent_of_other_requests(lm: DecoderLM, checkpoint: Checkpoint) -> None:
    requests: list[Instance] = []
    for name in ROWS:
        task = load(name, lm, 2)
        task.build_all_requests()
        requests += task.instances
    whole = dict(zip((request.args for request in requests), lm.loglikelihood(requests), strict=True))
    draw = Random(0)
    some = [
        requests[::-1],
        draw.sample(requests, len(requests)),
        requests[1::2],
        draw.sample(requests, 9),
        requests[:1],
        requests[9:10],
    ]
    for budget, part in [(1, requests), (100, requests), (1000, requests), *((8192, part) for part in some)]:
        fresh = open_lm(open_model(checkpoint.directory))
        fresh.batch_tokens = budget
        assert fresh.loglikelihood(part) == [whole[request.args] for request in part]


def test_packed_longrope_positions_follow_each_texts_length(checkpoint: Checkpoint, tmp_path: Path) -> None:
    pairs = checkpoint.config.head_size // 2
    scaling = {"factors": [1.0] * pairs, "long_factors": [3.0] * pairs, "original_sequence": 24}
    lm = open_lm(
        open_model(save_llama(checkpoint, tmp_path, checkpoint.tokenizer_path, rotary_scaling=scaling).directory)
    )
    ranges = [(range(10, 30 + more), range(50, 50 + size)) for more in (0, 5) for size in (1, 5, 6, 12)]
    requests = [Request(tuple(context), tuple(answer)) for context, answer in ranges]
    expected = [plain(lm, *request)[0] for request in requests]
    assert [logp for logp, _ in lm.score(requests)] == pytest.approx(expected, abs=CLOSE)


def test_long_prompt_is_cut_from_the_left_and_reported(lm: DecoderLM) -> None:
    lm.max_length = 20
    task = load("race_h", lm, 0)
    task.build_all_requests(limit=1)
    (logp, _) = lm.loglikelihood(task.instances[:1])[0]
    assert lm.cut == {id(task.instances[0])}
    context, answer = lm._encode_pair(*task.instances[0].args)
    assert logp == pytest.approx(plain(lm, context[-(21 - len(answer)) :], answer)[0], abs=CLOSE)


def test_rolling_loglikelihood_predicts_every_token_once(lm: DecoderLM) -> None:
    text = " ".join(f"the {n} sailors thanked the cook ." for n in range(40))
    ids = lm.tok_encode(text)
    assert len(ids) > 2 * lm.max_length
    (logp,) = lm.loglikelihood_rolling([Instance("loglikelihood_rolling", {}, (text,), 0)])
    first = plain(lm, [lm.prefix_token_id], ids[: lm.max_length])[0]
    rest, read = first, lm.max_length
    while read < len(ids):
        end = min(read + lm.max_length, len(ids))
        rest += plain(lm, ids[end - lm.max_length - 1 : read], ids[read:end])[0]
        read = end
    assert logp == pytest.approx(rest, abs=10 * CLOSE)


def test_blank_context_is_empty(lm: DecoderLM) -> None:
    """Not the end of whatever text stands before it in the packed sequence."""
    pairs = [(" ", "the cook"), ("the sailors slept", " well"), ("\n", "the cook")]
    scores = lm.loglikelihood([Instance("loglikelihood", {}, pair, 0) for pair in pairs])
    for (context, answer), (logp, _) in zip(pairs, scores, strict=True):
        tokens = lm._tokenizer.encode(context.strip()) or [lm._tokenizer.bos]
        assert logp == pytest.approx(plain(lm, tokens, lm._encode_pair(context, answer)[1])[0], abs=CLOSE)


def test_model_with_nan_is_not_scored(checkpoint: Checkpoint) -> None:
    broken = open_lm(open_model(checkpoint.directory))
    with torch.no_grad():
        decoder_of(broken).final_norm.weight[0] = torch.nan
    with pytest.raises(Failure, match=r"the model's output is not a number \(NaN\): its weights are damaged"):
        broken.loglikelihood([Instance("loglikelihood", {}, ("the cook", " slept"), 0)])
