"""lm-eval's language model interface over an MT-NLG decoder.

Requests are tokenized (lm-eval's own split between context and continuation), answered from the store if possible, and
otherwise packed into batches (packing.py) for an `Engine`: the one place that runs the network, in this process or
sharded. Logits exist only at scored positions, a few hundred at a time, never [S, V].
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache, partial
from itertools import islice
from math import fsum
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch
from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from mtnlg_model.console import Failure, say
from mtnlg_model.functional import fp32_logits
from mtnlg_model.generation.generate import decode_until_stop
from mtnlg_model.tokenizer import Tokenizer

from .answer_store import AnswerStore
from .generation import Options, Prompt, PromptBatch, batch_prompts, generate_batch, requested_tokens
from .packing import Request, pack_rows, plan_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from lm_eval.api.instance import Instance
    from torch import Tensor

    from mtnlg_model.checkpoint.reader import Checkpoint
    from mtnlg_model.decoder import Decoder

    from .generation import SampleRequest
    from .packing import Batch, Row

    Score = tuple[float, bool]  # log P(answer | context), and whether greedy decoding gives the answer

TOKENS_PER_BATCH = 8192
POSITIONS_PER_CHUNK = 512
ROWS_PER_THREAD = 32
"""Matrix products get a multiple of this many rows per thread: products of few rows are summed in another order."""


class Engine(Protocol):
    """Runs the network on batch after batch; may run several at a time."""

    def score(self, batches: Iterable[Batch]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield for each batch log P(target) in fp32 and whether the target is the argmax, [N] each, on the CPU."""

    def generate(self, batches: Iterable[PromptBatch]) -> Iterator[list[list[int]]]:
        """Yield for each batch the new tokens of its prompts."""


class LocalEngine:
    """`Engine` with the whole decoder in this process, one batch after the other."""

    def __init__(self, decoder: Decoder, tokenizer: Tokenizer) -> None:
        self.decoder, self.tokenizer = decoder, tokenizer

    def score(self, batches: Iterable[Batch]) -> Iterator[tuple[Tensor, Tensor]]:
        """Score packed batches."""
        return map(self._score_batch, batches)

    def generate(self, batches: Iterable[PromptBatch]) -> Iterator[list[list[int]]]:
        """Generate from batches of prompts."""
        return map(partial(generate_batch, self.decoder, self.tokenizer), batches)

    @torch.inference_mode()
    def _score_batch(self, batch: Batch) -> tuple[Tensor, Tensor]:
        batch = batch.to(self.decoder.embedding.token.weight.device)
        plan = batch.attention_plan()
        attend = plan.attend(self.decoder.config.layers)
        x_NH = self.decoder.hidden(batch.tokens[None], plan.position_ids[None], attend)[:, 0]
        chunks = zip(*(torch.split(x, POSITIONS_PER_CHUNK) for x in (x_NH, batch.targets)), strict=True)
        logps, greedy = zip(*(self._score_positions(*chunk) for chunk in chunks), strict=True)
        return torch.cat(logps).cpu(), torch.cat(greedy).cpu()

    def _score_positions(self, x_NH: Tensor, target_N: Tensor) -> tuple[Tensor, Tensor]:
        logits_NV = fp32_logits(x_NH, self.decoder.embedding.token.weight)
        # The same order of operations as the sharded model's, for equal scores to the last bit.
        logit_N = logits_NV.gather(1, target_N[:, None])[:, 0]
        max_N, argmax_N = logits_NV.max(1)
        sum_N = logits_NV.sub_(max_N[:, None]).exp_().sum(1)
        return logit_N - max_N - sum_N.log(), argmax_N == target_N


class DecoderLM(TemplateLM):  # type: ignore[misc]  # lm-eval carries no types
    """A decoder as lm-eval's model, for any of its tasks; calls ``on_scored(n)`` when n more requests are answered."""

    def __init__(
        self, decoder: Decoder, tokenizer: Tokenizer, store: AnswerStore, engine: Engine | None = None
    ) -> None:
        super().__init__()
        if tokenizer.vocabulary > decoder.config.vocabulary:
            raise Failure(
                f"the tokenizer has {tokenizer.vocabulary} tokens and the model {decoder.config.vocabulary}:"
                " they do not belong together"
            )
        self.decoder, self.store, self.engine = decoder, store, engine or LocalEngine(decoder, tokenizer)
        self.max_length = decoder.config.sequence
        self.precision = str(decoder.embedding.token.weight.dtype).removeprefix("torch.")
        self.on_scored: Callable[[int], None] = lambda _: None
        self.batch_tokens = TOKENS_PER_BATCH
        self._tokenizer = tokenizer
        self._encode = lru_cache(maxsize=64)(lambda text: tuple(tokenizer.encode(text)))

    @classmethod
    def open(cls, checkpoint: Checkpoint, store: Path | None = None, sharded: Engine | None = None) -> DecoderLM:
        """Load a checkpoint's decoder, unless it is ``sharded``: on a GPU as stored, or on the CPU in fp32.

        Answers are kept in the file ``store``, or in memory.
        """
        cuda = torch.cuda.is_available()
        dtype = checkpoint.dtype(checkpoint.names[0]) if cuda else torch.float32
        answers = AnswerStore(f"{checkpoint.digest} {dtype}", store)
        tokenizer = Tokenizer(checkpoint.tokenizer_path)
        if sharded is not None:
            # It has every attribute of a decoder that this class reads.
            return cls(cast("Decoder", sharded), tokenizer, answers, sharded)
        return cls(checkpoint.decoder(dtype, "cuda" if cuda else "cpu"), tokenizer, answers)

    @property
    def eot_token_id(self) -> int:
        """Token that ends a document; it also stands in for an empty context."""
        return self._tokenizer.eod

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: object) -> list[int]:
        """Tokenize a text; special tokens are never added."""
        del add_special_tokens
        return list(self._encode(string))

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = True) -> list[Score]:
        """Score continuations; lm-eval's progress bar stays off, ``on_scored`` reports instead."""
        del disable_tqdm
        scores: list[Score] = super().loglikelihood(requests, disable_tqdm=True)
        return scores

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = True) -> list[float]:
        """Log P of whole texts of any length; each token is predicted once, with as much context as fits."""
        del disable_tqdm
        totals: list[float] = []
        for (text,) in (request.args for request in requests):
            windows = get_rolling_token_windows(self.tok_encode(text), self.prefix_token_id, self.max_length, 1)
            parts = [Request(*map(tuple, make_disjoint_window(window))) for window in windows]
            totals.append(sum(logp for logp, _ in self.score(parts)))
        return totals

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = True) -> list[str]:
        """Continue each prompt up to the first of its ``until`` strings; greedy texts are stored."""
        del disable_tqdm
        prompts = [
            Prompt.parse(self.tok_encode(text) or [self.eot_token_id], options, self.max_length)
            for text, options in (request.args for request in requests)
        ]
        self._say_what_is_capped(requests, prompts)
        keys = [self.store.key("generate", prompt.context, *prompt.options[:2]) for prompt in prompts]
        stored = self.store.lookup(keys)
        texts = {n: str(stored[key]) for n, key in enumerate(keys) if key in stored and prompts[n].greedy}
        self.on_scored(len(texts))
        # A batch with one missing text runs whole: its texts must not depend on what is stored.
        batches = [(numbers, batch) for numbers, batch in batch_prompts(prompts) if not texts.keys() >= set(numbers)]
        for (numbers, batch), new in zip(batches, self.engine.generate(batch for _, batch in batches), strict=True):
            self.on_scored(sum(n not in texts for n in numbers))
            texts |= {n: self._decode(tokens, batch.options.until) for n, tokens in zip(numbers, new, strict=True)}
            self.store.save((keys[n], texts[n]) for n in numbers if prompts[n].greedy)
        return [texts[n] for n in range(len(prompts))]

    def _say_what_is_capped(self, requests: Sequence[Instance], prompts: Sequence[Prompt]) -> None:
        asked = [requested_tokens(request.args[1]) for request in requests]
        if capped := [n for n, prompt in zip(asked, prompts, strict=True) if n > prompt.options.max_tokens]:
            most = self.max_length // 2
            say(f"{len(capped)} texts end after {most} new tokens, half the context, where {max(capped)} are asked for")

    def sample(self, requests: Sequence[SampleRequest]) -> Iterator[list[str]]:
        """Yield the sampled texts of each request, in order; they are stored as they come."""
        keys = [self.store.key("samples", *r[:3], r.sampling.model_dump(), r.stop) for r in requests]
        texts = self.store.lookup(keys)
        missing = {key: request for key, request in zip(keys, requests, strict=True) if key not in texts}
        generated = self.engine.generate(map(self._sample_batch, missing.values()))
        for key in keys:
            if key not in texts:  # the next of the missing ones, which are in the order of the keys
                texts[key] = [self._decode(tokens, missing[key].stop) for tokens in next(generated)]
                self.store.save([(key, texts[key])])
            yield list(texts[key])

    def _sample_batch(self, request: SampleRequest) -> PromptBatch:
        context = tuple(self._encode(request.prompt)) or (self.eot_token_id,)
        options = Options(request.stop, request.max_tokens, request.sampling)
        return PromptBatch((context,) * request.samples, options)

    def _decode(self, tokens: Sequence[int], until: Sequence[str]) -> str:
        return decode_until_stop(self._tokenizer, tokens, until)

    def _loglikelihood_tokens(self, requests: Iterable[tuple[Any, list[int], list[int]]], **_: object) -> list[Score]:
        return self.score([self._truncate(context, answer) for _, context, answer in requests])

    def _truncate(self, context: Sequence[int], answer: Sequence[int]) -> Request:
        """Build a request, dropping the beginning of a context that is too long for the model."""
        if not 0 < len(answer) <= self.max_length:
            raise Failure(f"{len(answer)} tokens to score; a continuation has from 1 to {self.max_length}")
        return Request(tuple(context[-(self.max_length + 1 - len(answer)) :]), tuple(answer))

    def score(self, requests: Sequence[Request]) -> list[Score]:
        """Score requests, equal ones once, storing each batch before the next begins.

        A score does not depend on the other requests, on what is stored or on ``batch_tokens`` (docs/decisions/0085).
        """
        counts = Counter(requests)
        keys = {request: self.store.key("score", *request) for request in counts}
        stored = self.store.lookup(list(keys.values()))
        scores = {request: (stored[key][0], bool(stored[key][1])) for request, key in keys.items() if key in stored}
        self.on_scored(sum(counts[request] for request in scores))
        missing = (request for request in counts if request not in scores)
        batches = plan_batches(missing, self.max_length, self.batch_tokens)
        multiple = ROWS_PER_THREAD * torch.get_num_threads()
        for rows, result in zip(batches, self.engine.score(pack_rows(rows, multiple) for rows in batches), strict=True):
            new = _scores_of_rows(rows, *result)
            self.store.save((keys[request], score) for request, score in new.items())
            scores |= new
            self.on_scored(sum(counts[request] for request in new))
        return [scores[request] for request in requests]


def _scores_of_rows(rows: Sequence[Row], logp_N: Tensor, greedy_N: Tensor) -> dict[Request, Score]:
    """Sum token scores, ordered as `pack_rows` orders scored positions, into one score per request."""
    logp, greedy = iter(logp_N.tolist()), iter(greedy_N.tolist())
    requests = [request for row in rows for request in row.requests]
    return {
        request: (fsum(islice(logp, len(request.answer))), all(list(islice(greedy, len(request.answer)))))
        for request in requests
    }
