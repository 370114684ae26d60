"""PromptEncoder: tokens and their split are lm-eval's for every tokenizer, and equal pieces are encoded once."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from lm_eval.api.model import TemplateLM
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers, trainers

from mtnlg_eval.scoring.prompt_encoder import PromptEncoder
from mtnlg_model.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable

EOD = "<|endoftext|>"
LLAMA = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False)


def kind(pre: Any = BYTES, *, normalizer: Any = None, added: tuple[Any, ...] = ()) -> Any:  # noqa: ANN401
    return pre, normalizer, added


KINDS = {
    "gpt2": kind(),
    "gpt2_with_words": kind(added=(AddedToken("?!"), AddedToken("<a>", normalized=False))),
    "llama": kind(
        pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(LLAMA), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
        )
    ),
    "whole_lines": kind(pre_tokenizers.ByteLevel(False, use_regex=False)),
    "prefix_space": kind(pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "metaspace": kind(pre_tokenizers.Metaspace()),
    "strips": kind(normalizer=normalizers.Strip()),
    "takes_blanks": kind(added=(AddedToken("<a>", rstrip=True),)),
    "whole_words": kind(added=(AddedToken("a", single_word=True),)),
    "with_a_blank": kind(added=(AddedToken("a\n\nb"), AddedToken("? b"))),
}
TEXTS = [
    *"ab1?'. \n\r\t",
    "\n\n",
    "\n\n\n",
    " \n",
    "'s",
    EOD,
    "<a>",
    "é",
    "\u0301",
    "\u00a0",
    "\u2028",
    "\x1c",
    "😀",
    "ab",
]
TEXT = st.lists(st.sampled_from(TEXTS), max_size=14).map("".join)


@cache
def written(name: str) -> Path:
    """A trained tokenizer.json of a kind."""
    pre, normalizer, added = KINDS[name]
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre
    if normalizer:
        tokenizer.normalizer = normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    corpus = ["a b\n\nab?\n\nb 1\n\n\n a's b.  a\r\n?\n\nQuestion: a\nAnswer: b\n\n"] * 9
    corpus += ["? a ?\n\na ?\n\n?\n b?\x1c a ?\x1c"] * 9
    tokenizer.train_from_iterator(
        corpus, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    )
    tokenizer.add_tokens(list(added))
    tokenizer.add_special_tokens([EOD])
    path = Path(tempfile.mkdtemp()) / "tokenizer.json"
    tokenizer.save(str(path))
    return path


class Plain(TemplateLM):  # type: ignore[misc]  # lm-eval carries no types
    """lm-eval's own split, with a tokenizer called for every text."""

    eot_token_id = 0
    loglikelihood_rolling = generate_until = _loglikelihood_tokens = None

    def __init__(self, encode: Callable[[str], list[int]]) -> None:
        super().__init__()
        self._encode = encode

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: object) -> list[int]:
        del add_special_tokens
        return self._encode(string)


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=40)
@given(st.data())
def test_tokens_and_split_match_lm_eval(name: str, data: st.DataObject) -> None:
    tokenizer = Tokenizer(written(name))
    encoder = PromptEncoder(tokenizer)
    for _ in range(3):
        context, continuation = data.draw(TEXT), data.draw(TEXT)
        assert list(encoder.encode(context)) == tokenizer.encode(context)
        if context:
            expected = Plain(tokenizer.encode)._encode_pair(context, continuation)
            assert tuple(map(list, encoder.encode_pair(context, continuation))) == expected


def test_shared_shots_and_contexts_are_encoded_once() -> None:
    tokenizer, seen = Tokenizer(written("gpt2")), list[str]()
    encode = tokenizer.encode
    tokenizer.encode = lambda text: seen.append(text) or encode(text)  # type: ignore[method-assign,func-returns-value]
    encoder = PromptEncoder(tokenizer)
    for n in range(3):
        for choice in (" a", " b", " ab"):
            encoder.encode_pair(f"shot a\n\nshot b\n\nquestion {n}:", choice)
    questions = [f"\n\nquestion {n}:" for n in range(3)]
    assert sorted(seen) == sorted(["shot a", "\n\nshot b", *questions, " a", " b", " ab"])
    seen.clear()
    encoder.encode_pair("shot a\n\nshot b\n\nwords Bob", "'s rest")  # a choice that may join the last word
    assert seen == ["\n\nwords", " Bob", " Bob's rest"]
