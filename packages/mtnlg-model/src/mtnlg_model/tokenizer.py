"""Text to tokens and back, with a tokenizer.json of the `tokenizers` library; one of its tokens ends documents."""

from __future__ import annotations

import json
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import tokenizers

from .checkpoint.chat_files import named_tokens, own_file, read_chat_files
from .checkpoint.manifest import TOKENIZER
from .console import Failure, foreign_data
from .files import read_small
from .tokenizer_file import read_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

EOD_NAMES = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<EOS>", "[EOS]")
"""Names of the token that ends documents, as mtnlg-data looks for them; the first need not be a special token."""
BOS_NAMES = ("<|begin_of_text|>", "<s>", "<bos>", "[BOS]")
"""Names of the token that begins documents; many tokenizers have none."""


class Tokenizer:
    """A loaded tokenizer.json. Raises ``Failure`` if the file is unreadable or has no token that ends a document.

    ``eod`` is that token's number, ``eod_token`` its text; ``bos_token`` begins documents, ``eod_token`` if there is no
    such token. Both have a usual name, or one from the `chat_files` beside the tokenizer.json. ``ends`` are ``eod`` and
    the tokens that end an answer by those files. Many tokenizers put ``bos_token`` before a prompt (`before`).
    """

    def __init__(self, path: Path | str) -> None:
        path = Path(path)
        self._path, self._tokenizer = path, _load(path)
        special = {token.content for token in self._tokenizer.get_added_tokens_decoder().values() if token.special}
        usual = [name for name in EOD_NAMES[:1] if self._tokenizer.token_to_id(name) is not None]
        names = usual + [name for name in EOD_NAMES if name in special]
        named = named_tokens(path.parent, self._tokenizer)
        names += [self._tokenizer.id_to_token(number) or "" for number in named.end]
        if not names:
            raise Failure(f"{path}: no end token ({', '.join(EOD_NAMES)}); add one as a special token")
        self.eod_token: str = names[0]
        self.eod: int = self._tokenizer.token_to_id(names[0]) or 0  # None is ruled out
        self.ends = frozenset({self.eod, *named.end})
        begins = [self._tokenizer.id_to_token(number) or "" for number in named.begin]
        self.bos_token: str = next((name for name in BOS_NAMES if name in special), [*begins, self.eod_token][0])
        self.bos: int = self._tokenizer.token_to_id(self.bos_token) or 0
        self._before = _added_before(self._tokenizer, path)
        if outside := [token for token in self._before if token >= self.vocabulary]:
            raise Failure(f"{path}: texts begin with token {outside[0]} of a vocabulary of {self.vocabulary}")
        self._eod_length = len(self.decode([self.eod]))

    @property
    def vocabulary(self) -> int:
        """Number of tokens; a model may pad its vocabulary beyond this."""
        size: int = self._tokenizer.get_vocab_size()
        return size

    @property
    def definition(self) -> dict[str, Any]:
        """The content of tokenizer.json, as the library reads it."""
        content: dict[str, Any] = json.loads(self._tokenizer.to_str())
        return content

    def encode(self, text: str) -> list[int]:
        """Tokens of ``text``, without added special tokens. Raises ``Failure`` for half of a surrogate pair."""
        with _failures_of(self._path):
            try:
                tokens: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
            except TypeError:
                raise Failure(f"{text[:60]!r}: not Unicode: it has half of a surrogate pair") from None
        return tokens

    def before(self, text: str) -> list[int]:
        """Tokens that the tokenizer puts before ``text``; none if the text itself begins with ``bos_token``."""
        return [] if text.startswith(self.bos_token) else self._before

    def encode_prompt(self, text: str) -> list[int]:
        """Tokens of a prompt, after those that come `before` it; an empty prompt begins a document."""
        return [*self.before(text), *self.encode(text)] or [self.bos]

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of ``tokens``, special tokens included; invalid UTF-8 becomes U+FFFD."""
        with _failures_of(self._path):
            text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=False)
        return text

    def decode_behind(self, tokens: Sequence[int]) -> str:
        """`decode` of the continuation of a text: with the space that some tokenizers drop at the start of a text."""
        return self.decode([self.eod, *tokens])[self._eod_length :]

    def stop_condition(self, texts: Iterable[str]) -> Callable[[Sequence[int]], bool]:
        """Predicate on a row's new tokens: true if document or answer ends, or once they contain one of ``texts``."""
        stops = [text for text in texts if text]
        # A stop text has at most one token per byte; 4 more, since the first character may be cut.
        reach = max((len(text.encode()) for text in stops), default=0) + 4

        def reached(tokens: Sequence[int]) -> bool:
            if tokens[-1] in self.ends:
                return True
            text = self.decode_behind(tokens[-reach:]) if stops else ""
            return any(stop in text for stop in stops)

        return reached


def largest_token(path: Path, folder: Path) -> int:
    """The largest number of a token for text, or of one that begins or ends text according to ``folder``'s files.

    Any other added token, such as one for padding, arises only from text that spells it out, and does not count: some
    models have no row for it. Raises ``Failure`` if the file is unreadable.
    """
    tokenizer = _load(path)
    with _failures_of(path):
        around = tokenizer.encode("a").ids
    usual = (tokenizer.token_to_id(name) for name in (*EOD_NAMES, *BOS_NAMES))
    named = named_tokens(folder, tokenizer)
    ends = (*named.begin, *named.end, *(number for number in usual if number is not None))
    return max((*tokenizer.get_vocab(with_added_tokens=False).values(), *around, *ends), default=0)


def tokenizer_difference(ours: Path, theirs: Path) -> str:
    """How the tokens of two tokenizer.json differ; "" if every text gets the same tokens from both.

    Compares the numbers of all tokens, the normalizer, the pre-tokenizer and the model, as the library reads them.
    Ignores what the tokens of data do not depend on: formatting, padding, truncation, decoder and post-processor.
    """
    one, other = _load(ours), _load(theirs)
    numbers, their_numbers = one.get_vocab(), other.get_vocab()
    changed = sorted(numbers.items() ^ their_numbers.items(), key=lambda item: item[::-1])
    for name, _ in changed[:1]:
        number, their_number = (vocabulary.get(name, "no token") for vocabulary in (numbers, their_numbers))
        return f"{name!r} is {number} in {ours} and {their_number} in {theirs}"
    definition, their_definition = (json.loads(tokenizer.to_str()) for tokenizer in (one, other))
    parts = [part for part in ("normalizer", "pre_tokenizer", "model") if definition[part] != their_definition[part]]
    return f"{' and '.join(parts)} of {ours} and {theirs} differ" if parts else ""


class Carried(NamedTuple):
    """The `chat_files` that a model keeps when training continues from a checkpoint.

    ``notes`` has a line, with the reason, for each text setting that it does not keep.
    """

    files: dict[str, bytes]
    notes: tuple[str, ...] = ()


def carried_chat_files(checkpoint: Path, tokenizer: Path) -> Carried:
    """The `chat_files` of a checkpoint's folder, for a model trained on from it with the data's tokenizer.json.

    No files if a token of the checkpoint differs in the data's tokenizer, since they would name other tokens.
    """
    files, theirs, tokenizer = read_chat_files(checkpoint), own_file(checkpoint, TOKENIZER), tokenizer.resolve()
    if read_small(theirs) == read_small(tokenizer):
        return Carried(files)
    before, now = _load(theirs), _load(tokenizer)
    notes = []
    if difference := tokenizer_difference(tokenizer, theirs):
        notes.append(f"tokenizer.json: the data's replaces the model's: {difference}")
    elif _added_before(before, theirs) != _added_before(now, tokenizer):
        notes.append("tokenizer.json: the data's replaces the model's, which puts other tokens before a text")
    if files and not before.get_vocab().items() <= now.get_vocab().items():
        ends = ", ".join(before.id_to_token(number) or "" for number in named_tokens(checkpoint, before).end)
        named = f", and with them the end tokens {ends}" if ends else ""
        notes.append(f"{', '.join(files)}: not kept{named}: their tokens are not the data's")
        files = {}
    return Carried(files, tuple(notes))


def _added_before(tokenizer: tokenizers.Tokenizer, path: Path) -> list[int]:
    """Tokens that the tokenizer of ``path`` puts before a text."""
    with _failures_of(path):
        sample = tokenizer.encode("a")
    is_added = zip(sample.ids, sample.special_tokens_mask, strict=True)
    return [token for token, _ in takewhile(lambda pair: pair[1], is_added)]


def _load(path: Path) -> tokenizers.Tokenizer:
    """The library's tokenizer, without padding and truncation, which are left to training code."""
    text = read_tokenizer(path)
    with _failures_of(path):
        tokenizer = tokenizers.Tokenizer.from_str(text)
        tokenizer.no_padding()
        tokenizer.no_truncation()
    return tokenizer


@contextmanager
def _failures_of(path: Path) -> Iterator[None]:
    """Raise the library's errors and panics as ``Failure``."""
    try:
        with foreign_data(path):
            yield
    except Failure:
        raise
    except Exception as error:  # noqa: BLE001  (the library raises nothing narrower)
        raise Failure(f"{path}: not a valid tokenizer.json: {error}") from None
