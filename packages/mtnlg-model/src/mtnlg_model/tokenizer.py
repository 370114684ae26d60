"""Text to tokens and back, with a tokenizer.json of the `tokenizers` library; ``<|endoftext|>`` ends a document."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tokenizers

from .console import Failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

EOD = "<|endoftext|>"
_REPLACEMENT = "\ufffd"


class Tokenizer:
    """A loaded tokenizer.json. Raises ``Failure`` if the file is unreadable or has no ``<|endoftext|>`` token."""

    def __init__(self, path: Path) -> None:
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise Failure(f"{path}: {error.strerror}") from None
        except Exception as error:  # noqa: BLE001  (the library raises nothing narrower)
            raise Failure(f"{path}: not a tokenizer.json: {error}") from None
        eod = self._tokenizer.token_to_id(EOD)
        if eod is None:
            raise Failure(f"{path}: no {EOD} token; add it as a special token")
        self.eod: int = eod

    @property
    def vocabulary(self) -> int:
        """Number of tokens; a model may pad its vocabulary beyond this."""
        size: int = self._tokenizer.get_vocab_size()
        return size

    def encode(self, text: str) -> list[int]:
        """Tokens of ``text``, without added special tokens."""
        tokens: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return tokens

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of ``tokens``, special tokens included; invalid UTF-8 becomes U+FFFD."""
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=False)
        return text

    def decode_complete(self, tokens: Sequence[int]) -> str:
        """Like `decode`, without a final character whose bytes are not all there yet."""
        text = self.decode(tokens)
        return text.rstrip(_REPLACEMENT) if len(text) - len(text.rstrip(_REPLACEMENT)) < 4 else text

    def stop_condition(self, texts: Iterable[str]) -> Callable[[Sequence[int]], bool]:
        """Predicate on a row's new tokens: true at the end of the document or once they contain one of ``texts``."""
        stops = [text for text in texts if text]

        def reached(tokens: Sequence[int]) -> bool:
            if tokens[-1] == self.eod:
                return True
            text = self.decode(tokens) if stops else ""
            return any(stop in text for stop in stops)

        return reached
