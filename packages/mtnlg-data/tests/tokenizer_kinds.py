"""Small tokenizers of the kinds in use, trained here, and texts that are hard to encode.

benchmarks/tokenizer_ids.py compares the ids of every kind with those of ``tokenizers`` over 10,000 texts.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
from tokenizers.normalizers import NFC, NFKC, BertNormalizer, Lowercase, Nmt, Prepend, Replace, Strip, StripAccents
from tokenizers.pre_tokenizers import (
    BertPreTokenizer,
    ByteLevel,
    CharDelimiterSplit,
    Digits,
    Metaspace,
    Punctuation,
    Split,
    UnicodeScripts,
    Whitespace,
    WhitespaceSplit,
)
from tokenizers.processors import TemplateProcessing

from mtnlg_data.tokens.encoder import open_encoder
from mtnlg_data.tokens.tokenizer import EOD

if TYPE_CHECKING:
    from collections.abc import Sequence

SPECIAL = ("<unk>", "<s>", "</s>")
FALLBACK = tuple(f"<0x{byte:02X}>" for byte in range(256))
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
O200K = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|" + LLAMA3
PARTS = ["the", "quick", "brown", "Fox", "'s", "don't", "12", "3456789", ",", ".", ";", "_(", "foo_bar", "\u2581"]
PARTS += [
    "</s>",
    "<s>",
    "<unk>",
    "[SEP]",
    "<|endoftext|>",
    "<0x0A>",
    "https://a.b/c?d=e&f=1",
    "\x00",
    "\ufffd",
    "\u200d",
]
PARTS += [
    "日本語。",
    "한국어",
    "ไทย",
    "हिन्दी",
    "العربية",
    "naïve",
    "e\u0301",
    "ﬁ",
    "Ⅷ",
    "İ",
    "ΣΑΣ",
    "👩\u200d👧",
    "\u0301\u0301",
]
RUNS = ["\n\n", "  ", "\t", "\r\n", "\u00a0", " " * 40, "=" * 70, "0" * 50, "ACGT" * 12, "\n" * 9, " \n", " </s> "]


def odd_text(random: Random, length: int) -> str:
    """A text of so many characters of prose, marks, runs, scripts, literal special tokens, or of few of them again."""
    few, parts = random.choices([*PARTS, *RUNS], k=random.choice([2, 5, 50, 300])), []
    while length > 0:
        parts.append(random.choice(few) + " " * (random.random() < 0.6))
        length -= len(parts[-1])
    return "".join(parts)[: length or None]


class Kind(NamedTuple):
    """What a tokenizer is made of, beside a vocabulary."""

    model: Any
    normalizer: Any = None
    pre_tokenizer: Any = None
    before: str = ""  # put before every text by the post-processor
    vocabulary: tuple[str, ...] = ()  # beside the special tokens

    def train(self, texts: list[str]) -> Tokenizer:
        """A tokenizer with some hundred tokens of these texts."""
        tokenizer = Tokenizer(self.model)
        if self.normalizer:
            tokenizer.normalizer = self.normalizer
        if self.pre_tokenizer:
            tokenizer.pre_tokenizer = self.pre_tokenizer
        train: dict[str, Any] = {"vocab_size": 900, "special_tokens": [*SPECIAL, *self.vocabulary]}
        train["show_progress"] = False
        name = type(self.model).__name__.replace("BPE", "Bpe")
        if name == "Bpe":
            train["initial_alphabet"] = ByteLevel.alphabet()
            if suffix := self.model.end_of_word_suffix:
                train["end_of_word_suffix"] = suffix
        if name == "Unigram":
            train["unk_token"] = "<unk>"  # noqa: S105
        tokenizer.train_from_iterator(texts, getattr(trainers, f"{name}Trainer")(**train))
        if self.before:
            pairs = [(self.before, tokenizer.token_to_id(self.before))]
            tokenizer.post_processor = TemplateProcessing([self.before, "$A"], special_tokens=pairs)
        content = json.loads(tokenizer.to_str())
        content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] in SPECIAL]
        return Tokenizer.from_str(json.dumps(content))


def _several(*parts: Any, of: Any = pre_tokenizers) -> Any:  # noqa: ANN401
    return of.Sequence(list(parts))


def _split(pattern: str) -> Any:  # noqa: ANN401
    return _several(Split(Regex(pattern), "isolated"), ByteLevel(add_prefix_space=False, use_regex=False))


def _sentencepiece(**more: Any) -> Any:  # noqa: ANN401
    return models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True, **more)  # noqa: S106


UNKNOWN = {"unk_token": "<unk>"}
SPACES = Replace(" ", "\u2581")
KINDS = {
    "gpt2": Kind(models.BPE(), None, ByteLevel(add_prefix_space=False)),
    "roberta": Kind(models.BPE(), None, ByteLevel(add_prefix_space=True), "<s>"),
    "llama2": Kind(_sentencepiece(), _several(Prepend("\u2581"), SPACES, of=normalizers), None, "<s>", FALLBACK),
    "llama3": Kind(models.BPE(ignore_merges=True), None, _split(LLAMA3), "<s>"),
    "qwen": Kind(models.BPE(), NFC(), _split(LLAMA3.replace("{1,3}", ""))),
    "o200k": Kind(models.BPE(), None, _split(O200K)),
    "mistral": Kind(_sentencepiece(), None, Metaspace(prepend_scheme="first", split=False), "<s>", FALLBACK),
    "gemma": Kind(_sentencepiece(), SPACES, Split("\u2581", "merged_with_previous"), "<s>", FALLBACK),
    "t5": Kind(models.Unigram(), _several(Nmt(), NFKC(), of=normalizers), Metaspace(prepend_scheme="always")),
    "albert": Kind(models.Unigram(), NFKC(), Metaspace(prepend_scheme="always", split=False)),
    "xlmr": Kind(
        models.Unigram(),
        _several(Nmt(), Replace(Regex(" {2,}"), " "), of=normalizers),
        _several(WhitespaceSplit(), Metaspace(prepend_scheme="always")),
    ),
    "scripts": Kind(models.Unigram(), NFKC(), _several(Whitespace(), UnicodeScripts(), Punctuation())),
    "bert": Kind(models.WordPiece(**UNKNOWN), BertNormalizer(), BertPreTokenizer(), "<s>"),
    "strip": Kind(
        models.WordPiece(**UNKNOWN), _several(Strip(), Lowercase(), StripAccents(), of=normalizers), WhitespaceSplit()
    ),
    "words": Kind(models.WordLevel(**UNKNOWN), None, WhitespaceSplit()),
    "digits": Kind(
        models.WordLevel(**UNKNOWN), None, _several(CharDelimiterSplit(" "), Digits(individual_digits=True))
    ),
    "clip": Kind(models.BPE(**UNKNOWN, end_of_word_suffix="</w>"), Lowercase(), Whitespace()),
}


def train_kind(name: str, *, keep_special: bool = False) -> Tokenizer:
    """A tokenizer of this kind; its texts spell special tokens only where these are to be kept."""
    random = Random(1)
    texts = [*(odd_text(random, 2000) for _ in range(60)), *["the quick brown </s> jumps </s> over <s> dogs " * 20] * 3]
    return KINDS[name].train(texts if keep_special else [_without_special(text) for text in texts])


def write_gpt2(folder: Path) -> Path:
    """GPT-2's two files, of a trained tokenizer: the ids of tokens, the end token last, and the merges."""
    ids, merges = map(Path, train_kind("gpt2").model.save(str(folder)))
    vocabulary = json.loads(ids.read_text(encoding="utf-8"))
    (folder / "encoder.json").write_text(json.dumps({**vocabulary, EOD: len(vocabulary)}), encoding="utf-8")
    ids.unlink()
    return merges.rename(folder / "vocab.bpe").parent


def _without_special(text: str) -> str:
    for special in SPECIAL:
        text = text.replace(special, "<>")
    return text


def differences(tokenizer: Tokenizer, folder: Path, texts: Sequence[str]) -> list[str]:
    """The texts that our encoder gives other ids than ``tokenizers``, or ids of special tokens.

    A model that has special tokens in its vocabulary finds them in texts, so the library's ids count where it has not.
    """
    tokenizer.save(str(folder / "tokenizer.json"))
    encode = open_encoder(folder / "tokenizer.json", "tokenizers")
    tokenizer.encode_special_tokens = True
    ends = {tokenizer.token_to_id(special) for special in SPECIAL[1:]}
    different = []
    for text in texts:
        ids = encode([text])[0].tolist()
        theirs = tokenizer.encode(text, add_special_tokens=False).ids
        spelled = any(special in text for special in SPECIAL) and type(tokenizer.model).__name__ != "BPE"
        if not ends.isdisjoint(ids) or (ids != theirs and not spelled):
            different.append(text)
    return different
