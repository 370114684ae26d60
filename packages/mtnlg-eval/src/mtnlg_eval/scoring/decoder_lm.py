"""lm-eval's language model interface over an MT-NLG decoder.

Requests are tokenized (prompt_encoder.py, with lm-eval's own split between context and continuation), answered from the
store if possible, and otherwise queued (rolling_queue.py) for an `Engine`: the one place that runs the network, in this
process or sharded. Logits exist only at scored positions, a few hundred at a time, never [S, V].
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from mtnlg_model.console import Failure, say
from mtnlg_model.functional import fp32_logits
from mtnlg_model.generation.generate import decode_until_stop
from mtnlg_model.tokenizer import Tokenizer

from .answer_store import AnswerStore
from .fixed_order import TILE, fixed_order
from .generation import Options, Prompt, PromptBatch, batch_prompts, generate_batch, requested_tokens
from .packing import Request
from .prompt_encoder import PromptEncoder
from .rolling_queue import RollingQueue
from .transfers import Arriving, to_device

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from lm_eval.api.instance import Instance
    from torch import Tensor

    from mtnlg_model.checkpoint.reader import Checkpoint
    from mtnlg_model.decoder import Decoder

    from .generation import SampleRequest
    from .packing import Batch
    from .rolling_queue import Engine, Score

TOKENS_PER_BATCH = 8192
ROWS_PER_THREAD = 32
"""Matrix products get a multiple of this many rows per thread: products of few rows are summed in another order."""


class LocalEngine:
    """`Engine` with the whole decoder in this process. On a GPU the next batch is packed while one is computed."""

    batch_share = 1

    def __init__(self, decoder: Decoder, tokenizer: Tokenizer) -> None:
        self.decoder, self.tokenizer = decoder, tokenizer
        self.device = decoder.embedding.token.weight.device
        self.capacity, self.row_multiple = 2 if self.device.type == "cuda" else 1, row_multiple(self.device)
        self._in_flight: deque[Arriving] = deque()

    def submit(self, batch: Batch) -> None:
        """Score a packed batch; its scores may come later."""
        with fixed_order(self.device):
            self._in_flight.append(Arriving(self._score_batch(batch)))

    def collect(self) -> tuple[Tensor, Tensor]:
        """Scores of the oldest batch."""
        logp_N, greedy_N = self._in_flight.popleft().wait()
        return logp_N, greedy_N > 0

    def finish(self) -> None:
        """Nothing is left to do."""

    def generate(self, batches: Iterable[PromptBatch]) -> Iterator[list[list[int]]]:
        """Generate from batches of prompts."""
        return map(partial(generate_batch, self.decoder, self.tokenizer), batches)

    @torch.inference_mode()
    def _score_batch(self, batch: Batch) -> Tensor:
        """Log P(target) and greedy flags, [2, N] in fp32."""
        plan = batch.attention_plan(self.device)
        attend = plan.attend(self.decoder.config.layers)
        tokens_S, targets_N = (to_device(x, self.device) for x in (batch.tokens, batch.targets))
        x_NH = self.decoder.hidden(tokens_S[None], plan.position_ids[None], attend)[:, 0]
        chunks = zip(*(torch.split(x, TILE) for x in (x_NH, targets_N)), strict=True)
        logps, greedy = zip(*(self._score_positions(*chunk) for chunk in chunks), strict=True)
        logp_N = torch.cat(logps)
        return torch.stack((logp_N, torch.cat(greedy).to(logp_N.dtype)))

    def _score_positions(self, x_NH: Tensor, target_N: Tensor) -> tuple[Tensor, Tensor]:
        logits_NV = fp32_logits(x_NH, self.decoder.head_weight)
        # The same order of operations as the sharded model's, for equal scores to the last bit.
        logit_N = logits_NV.gather(1, target_N[:, None])[:, 0]
        max_N, argmax_N = logits_NV.max(1)
        sum_N = logits_NV.sub_(max_N[:, None]).exp_().sum(1)
        return logit_N - max_N - sum_N.log(), argmax_N == target_N


def row_multiple(device: torch.device) -> int:
    """Rows of products, and scored positions, come in multiples of this, so that their number changes no sum."""
    return TILE if device.type == "cuda" else ROWS_PER_THREAD * torch.get_num_threads()


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
        self._prompts = PromptEncoder(tokenizer)

    @classmethod
    def open(cls, checkpoint: Checkpoint, store: Path | None = None, sharded: Engine | None = None) -> DecoderLM:
        """Load a checkpoint's decoder, unless it is ``sharded``: on a GPU as stored, or on the CPU in fp32.

        Answers are kept in the file ``store``, or in memory.
        """
        cuda = torch.cuda.is_available()
        dtype = checkpoint.dtype(checkpoint.names[0]) if cuda else torch.float32
        tokenizer = Tokenizer(checkpoint.tokenizer_path)
        also_ends = sorted(tokenizer.ends - {tokenizer.eod})  # of which no weight tells
        answers = AnswerStore(" ".join(map(str, (checkpoint.digest, dtype, *also_ends))), store)
        if sharded is not None:
            # It has every attribute of a decoder that this class reads.
            return cls(cast("Decoder", sharded), tokenizer, answers, sharded)
        return cls(checkpoint.decoder(dtype, "cuda" if cuda else "cpu"), tokenizer, answers)

    @property
    def eot_token_id(self) -> int:
        """Token that ends a document."""
        return self._tokenizer.eod

    @property
    def prefix_token_id(self) -> int:
        """Token that stands in for an empty context: the one that begins documents, as in lm-eval's own backend."""
        return self._tokenizer.bos

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: object) -> list[int]:
        """Tokenize a text; the tokenizer's own first token comes before it unless ``add_special_tokens`` is False."""
        before = [] if add_special_tokens is False else self._tokenizer.before(string)
        return [*before, *self._prompts.encode(string)]

    def _encode_pair(self, context: str, continuation: str) -> tuple[Sequence[int], Sequence[int]]:
        """lm-eval's split of a request's tokens, with every piece of text encoded once."""
        tokens, answer = self._prompts.encode_pair(context, continuation)
        return tokens or (self.prefix_token_id,), answer  # a context may be blank

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = True) -> list[Score]:
        """Score continuations; lm-eval's progress bar stays off, ``on_scored`` reports instead."""
        del disable_tqdm
        return self.score(self.requests_of(requests))

    def requests_of(self, instances: Sequence[Instance]) -> list[Request]:
        """lm-eval's requests for log-likelihoods in tokens, split by lm-eval, not yet scored."""
        requests: list[Request] = super().loglikelihood(instances, disable_tqdm=True)
        return requests

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
            Prompt.parse(self._prompts.encode_prompt(text), options, self.max_length)
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
        batches = [self._sample_batch(request) for request in requests]
        keys = [self._sample_key(batch) for batch in batches]
        texts = self.store.lookup(keys)
        missing = {key: batch for key, batch in zip(keys, batches, strict=True) if key not in texts}
        generated = self.engine.generate(missing.values())
        for key in keys:
            if key not in texts:  # the next of the missing ones, which are in the order of the keys
                texts[key] = [self._decode(tokens, missing[key].options.until) for tokens in next(generated)]
                self.store.save([(key, texts[key])])
            yield list(texts[key])

    def _sample_batch(self, request: SampleRequest) -> PromptBatch:
        options = Options(request.stop, request.max_tokens, request.sampling)
        return PromptBatch((self._prompts.encode_prompt(request.prompt),) * request.samples, options)

    def _sample_key(self, batch: PromptBatch) -> bytes:
        until, max_tokens, sampling = batch.options
        return self.store.key(
            "samples", batch.contexts[0], len(batch.contexts), until, max_tokens, sampling.model_dump()
        )

    def _decode(self, tokens: Sequence[int], until: Sequence[str]) -> str:
        return decode_until_stop(self._tokenizer, tokens, until)

    def _loglikelihood_tokens(
        self, requests: Iterable[tuple[Any, Sequence[int], Sequence[int]]], **_: object
    ) -> list[Request]:
        """Where lm-eval's tokenization ends, for `requests_of`."""
        return [self._truncate(context, answer) for _, context, answer in requests]

    def _truncate(self, context: Sequence[int], answer: Sequence[int]) -> Request:
        """Build a request, dropping the beginning of a context that is too long for the model."""
        if not 0 < len(answer) <= self.max_length:
            raise Failure(f"{len(answer)} tokens to score; a continuation has from 1 to {self.max_length}")
        return Request(tuple(context[-(self.max_length + 1 - len(answer)) :]), tuple(answer))

    def score(self, requests: Sequence[Request]) -> list[Score]:
        """Score requests, equal ones once, storing each batch as it comes.

        A score does not depend on the other requests, on what is stored or on ``batch_tokens`` (docs/decisions/0085).
        """
        with self.queue() as queue:
            return queue.submit(requests, self.on_scored).result()

    def queue(self) -> RollingQueue:
        """A queue of requests to this model."""
        return RollingQueue(self.engine, self.store, self.max_length, self.batch_tokens)
