"""Text to tokens and back, by a tokenizer.json of the `tokenizers` library; its ``<|endoftext|>`` ends a document."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tokenizers

from .console import Failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

EOD = "<|endoftext|>"
_INCOMPLETE = "\ufffd"


class Tokenizer:
    """A tokenizer.json opened; ``Failure`` where it is none, or has no ``<|endoftext|>``."""

    def __init__(self, path: Path) -> None:
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise Failure(f"{path}: {error.strerror}") from None
        except Exception as error:  # noqa: BLE001  (the library raises nothing narrower)
            raise Failure(f"{path}: no tokenizer.json: {error}") from None
        eod = self._tokenizer.token_to_id(EOD)
        if eod is None:
            raise Failure(f"{path}: has no {EOD} token")
        self.eod: int = eod

    @property
    def vocabulary(self) -> int:
        """Number of tokens; a model's own may be padded to more."""
        size: int = self._tokenizer.get_vocab_size()
        return size

    def encode(self, text: str) -> list[int]:
        """Tokens of ``text``, with nothing added at either end."""
        tokens: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return tokens

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of ``tokens``, ends of documents shown; bytes that are no character become U+FFFD."""
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=False)
        return text

    def whole(self, tokens: Sequence[int]) -> str:
        """As `decode`, less a last character of which only some bytes are there yet."""
        text = self.decode(tokens)
        return text.rstrip(_INCOMPLETE) if len(text) - len(text.rstrip(_INCOMPLETE)) < 4 else text

    def ends(self, texts: Iterable[str]) -> Callable[[Sequence[int]], bool]:
        """A claim about new tokens, for `generate`: they hold one of ``texts``, or the last ends the document."""
        wanted = [text for text in texts if text]

        def ended(tokens: Sequence[int]) -> bool:
            if tokens[-1] == self.eod:
                return True
            text = self.decode(tokens) if wanted else ""
            return any(end in text for end in wanted)

        return ended
