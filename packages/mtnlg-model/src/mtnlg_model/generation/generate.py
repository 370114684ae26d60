"""Generation: prompts in, tokens out, one new token for every row a step.

Prompts of different lengths stand flush right; the padding before them is masked, and each row's positions count from
its own first token, as learned position embeddings need. Rows that have ended leave the batch.

    p = softmax(logits / temperature), cut to the k likeliest, then to the fewest whose sum reaches top_p
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import torch
from pydantic import Field

from mtnlg_model.console import Failure
from mtnlg_model.functional import causal_mask
from mtnlg_model.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

    from mtnlg_model.decoder import Decoder
    from mtnlg_model.tokenizer import Tokenizer

    from .cache import Cache


class Sampling(Settings):
    """How the next token is drawn. Temperature 0 takes the likeliest; each row draws from (seed, row) alone."""

    temperature: Annotated[float, Field(ge=0.0)] = 0.0
    top_k: Annotated[int, Field(ge=1)] | None = None
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    seed: int = 0


GREEDY = Sampling()


def probabilities(logits_BV: Tensor, sampling: Sampling) -> Tensor:
    """Distribution [B, V] that a token is drawn from, in fp32; needs a temperature above 0."""
    p_BV = torch.softmax(logits_BV.float() / sampling.temperature, dim=-1)
    if sampling.top_k is not None:
        least_B1 = p_BV.topk(min(sampling.top_k, p_BV.shape[-1])).values[:, -1:]
        p_BV = torch.where(p_BV < least_B1, 0.0, p_BV)
        p_BV /= p_BV.sum(-1, keepdim=True)
    if sampling.top_p < 1:
        sorted_BV, order_BV = p_BV.sort(descending=True, stable=True)
        before_BV = sorted_BV.cumsum(-1) - sorted_BV
        p_BV = p_BV.masked_fill(
            torch.zeros_like(p_BV, dtype=torch.bool).scatter(1, order_BV, before_BV >= sampling.top_p), 0
        )
        p_BV /= p_BV.sum(-1, keepdim=True)
    return p_BV


def stream(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    tokens: int,
    sampling: Sampling = GREEDY,
    *,
    vocabulary: int | None = None,
    ended: Callable[[Sequence[int]], bool] | None = None,
) -> Iterator[tuple[int, int]]:
    """Yield (row, token) as tokens come: at most ``tokens`` a row, fewer where the model's sequence is full.

    A row ends when ``ended`` says so of its new tokens; the one that ended it is yielded. Only the first ``vocabulary``
    entries are drawn from, which leaves out a padded vocabulary's tail. ``Failure`` for an empty or too long prompt.
    """
    if not prompts:
        return
    _refuse(prompts, decoder)
    longest = max(len(prompt) for prompt in prompts)
    tokens = min(tokens, decoder.config.sequence - longest + 1)
    device = decoder.embedding.token.weight.device
    draws = [torch.Generator().manual_seed(sampling.seed * 1_000_003 + row) for row in range(len(prompts))]
    padding_B = torch.tensor([longest - len(prompt) for prompt in prompts], device=device)
    cache = decoder.cache(longest + tokens - 1)
    rows = list(range(len(prompts)))
    new: list[list[int]] = [[] for _ in prompts]
    feed_BS = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts], device=device)
    for _ in range(tokens):
        with torch.inference_mode(), evaluating(decoder):
            logits_BV = _next_logits(decoder, feed_BS, padding_B, cache)[:, :vocabulary]
            drawn = _draw(logits_BV, sampling, [draws[row] for row in rows])
        for row, token in zip(rows, drawn, strict=True):
            new[row].append(token)
            yield row, token
        alive = [n for n, row in enumerate(rows) if ended is None or not ended(new[row])]
        if not alive:
            return
        if len(alive) < len(rows):
            kept = torch.tensor(alive, device=device)
            cache.keep(kept)
            rows, padding_B = [rows[n] for n in alive], padding_B[kept]
        feed_BS = torch.tensor([[new[row][-1]] for row in rows], device=device)


def generate(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    tokens: int,
    sampling: Sampling = GREEDY,
    *,
    vocabulary: int | None = None,
    ended: Callable[[Sequence[int]], bool] | None = None,
) -> list[list[int]]:
    """The new tokens of every prompt; as `stream`."""
    new: list[list[int]] = [[] for _ in prompts]
    for row, token in stream(decoder, prompts, tokens, sampling, vocabulary=vocabulary, ended=ended):
        new[row].append(token)
    return new


def complete(  # noqa: PLR0917  (the figures of a completion)
    decoder: Decoder,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    tokens: int,
    sampling: Sampling = GREEDY,
    stop: Sequence[str] = (),
) -> list[str]:
    """The text that follows each prompt, up to the end of the document or the first of the ``stop`` texts, excluded.

    An empty prompt begins a new document.
    """
    encoded = [tokenizer.encode(prompt) or [tokenizer.eod] for prompt in prompts]
    vocabulary, ended = tokenizer.vocabulary, tokenizer.ends(stop)
    completions = generate(decoder, encoded, tokens, sampling, vocabulary=vocabulary, ended=ended)
    return [cut(tokenizer, completion, stop) for completion in completions]


def pieces(  # noqa: PLR0917  (as complete)
    decoder: Decoder,
    tokenizer: Tokenizer,
    prompt: str,
    tokens: int,
    sampling: Sampling = GREEDY,
    stop: Sequence[str] = (),
) -> Iterator[str]:
    """The text of `complete` for one prompt, piece by piece as it comes and never taken back."""
    held = max((len(end) for end in stop), default=1) - 1
    new: list[int] = []
    shown = 0
    encoded, vocabulary, ended = tokenizer.encode(prompt) or [tokenizer.eod], tokenizer.vocabulary, tokenizer.ends(stop)
    for _, token in stream(decoder, [encoded], tokens, sampling, vocabulary=vocabulary, ended=ended):
        new.append(token)
        # Whole characters only, and nothing that may turn out to begin a stop text.
        sure = min(len(tokenizer.whole(new)) - held, len(cut(tokenizer, new, stop)))
        if sure > shown:
            yield cut(tokenizer, new, stop)[shown:sure]
            shown = sure
    yield cut(tokenizer, new, stop)[shown:]


def cut(tokenizer: Tokenizer, new: Sequence[int], stop: Sequence[str]) -> str:
    """Text of ``new`` before the end of the document and before the first of the ``stop`` texts."""
    text = tokenizer.decode(new[:-1] if new and new[-1] == tokenizer.eod else new)
    return text[: min((text.find(end) for end in stop if end and end in text), default=len(text))]


def lay_out_for_one_row(decoder: Decoder) -> None:
    """Lay the weights that make a vector longer column by column in memory; in place, shapes and values stay.

    One row times a matrix takes as long as the matrix takes to read, and a CPU's BLAS reads a matrix of many short rows
    1.1 to 2.5 times as fast by columns (benchmarks/generate.py). Several rows at once gain nothing.
    """
    for name, weight in decoder.named_parameters():
        if name.endswith(("token.weight", "qkv.weight", "up.weight")):
            weight.data = weight.data.t().contiguous().t()


@contextmanager
def evaluating(decoder: Decoder) -> Iterator[None]:
    """Dropout off for a while."""
    if not decoder.training:
        yield
        return
    decoder.eval()
    try:
        yield
    finally:
        decoder.train()


def _refuse(prompts: Sequence[Sequence[int]], decoder: Decoder) -> None:
    for row, prompt in enumerate(prompts):
        if not prompt:
            raise Failure(f"prompt {row} is empty; give it the end-of-document token to begin with")
        if len(prompt) > decoder.config.sequence:
            raise Failure(f"prompt {row} has {len(prompt)} tokens; the model reads {decoder.config.sequence}")
        if not 0 <= min(prompt) <= max(prompt) < decoder.config.vocabulary:
            raise Failure(f"prompt {row} has a token outside the vocabulary of {decoder.config.vocabulary}")


def _next_logits(decoder: Decoder, feed_BS: Tensor, padding_B: Tensor, cache: Cache) -> Tensor:
    s, held = feed_BS.shape[1], cache.length
    if not padding_B.any():
        return decoder.logits(decoder.hidden(feed_BS, cache.positions(feed_BS), cache.attend())[-1])
    places_S = torch.arange(held, held + s, device=feed_BS.device)
    positions_BS = (places_S - padding_B[:, None]).clamp(min=0)
    real_B1T = torch.arange(held + s, device=feed_BS.device) >= padding_B[:, None, None]
    causal_ST = causal_mask(s, held + s, feed_BS.device)
    # Padding sees itself, for a query that sees nothing has no softmax.
    itself_ST = places_S[:, None] == torch.arange(held + s, device=feed_BS.device)
    mask_B1ST = ((causal_ST & real_B1T) | itself_ST)[:, None]
    return decoder.logits(decoder.hidden(feed_BS, positions_BS, cache.attend(mask_B1ST))[-1])


def _draw(logits_BV: Tensor, sampling: Sampling, draws: Sequence[torch.Generator]) -> list[int]:
    if sampling.temperature == 0:
        return [int(token) for token in logits_BV.argmax(-1)]
    p_BV = probabilities(logits_BV, sampling)
    u_B1 = torch.stack([torch.rand(1, generator=draw) for draw in draws]).double().to(p_BV.device)
    sums_BV = p_BV.double().cumsum(-1)
    # Times the last sum, which rounding leaves a little off 1; the first sum above that is of a token with p > 0.
    return [int(token) for token in torch.searchsorted(sums_BV, u_B1 * sums_BV[:, -1:], right=True)[:, 0]]
