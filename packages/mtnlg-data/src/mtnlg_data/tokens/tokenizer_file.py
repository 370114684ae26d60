"""Read a tokenizer.json that anyone may have written, within bounds on what the `tokenizers` library would make of it.

The library does what the file says: 24 steps in a row that each write "aa" for "a" turn a letter into 16 million, and
padding to a billion tokens takes the memory of a billion. So the file is looked through first:

    its size                                  at most 64 MiB
    steps of normalizer, pre-tokenizer, decoder   at most `MAX_STEPS`
    growth of a text by all of them           at most `MAX_GROWTH` times, and `MAX_INSERTED` characters
    vocabulary of a Unigram model             at most `MAX_UNIGRAM_BYTES`, of which the library makes 270 times as many
    added tokens                              at most `MAX_ADDED_BYTES`; no such token is longer than `LONGEST_TOKEN`
    post-processor's template                 a text once, and at most `MAX_STEPS` tokens around it
    numbers of tokens                         below `MAX_NUMBER`: the library fills a table up to the largest

Tokenizers in use are far within: the most steps are about 10, and the growth is 66 (T5: what NFKC makes of one
ligature, times 2). Padding and truncation are for whoever trains, and who loads the tokenizer takes them off. Regular
expressions run with Oniguruma's own limit on backtracking, beyond which an encoding fails.

``mtnlg_model`` has a copy of this file, since neither package may import the other; a test keeps the two equal.
"""

from __future__ import annotations

import base64
import json
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from mtnlg_data.console import Failure
from mtnlg_data.files import read_small

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAX_STEPS: Final = 64
MAX_GROWTH: Final = 256
MAX_INSERTED: Final = 4096
MAX_UNIGRAM_BYTES: Final = 4 << 20
MAX_ADDED_BYTES: Final = 1 << 20
LONGEST_TOKEN: Final = 1024
MAX_NUMBER: Final = 1 << 22
STAGES: Final = ("normalizer", "pre_tokenizer", "decoder")


def read_tokenizer(path: Path) -> str:
    """The text of a tokenizer.json within the bounds. Raises ``Failure`` naming the one that it exceeds."""
    try:
        text = read_small(path).decode()
        content = json.loads(text, object_pairs_hook=_unique_keys)
        reason = _excess(content)
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}") from None
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise Failure(f"{path}: not a tokenizer.json: {str(error)[:200] or type(error).__name__}") from None
    if reason:
        raise Failure(f"{path}: {reason}; not a tokenizer for text")
    return text


def missing_tokenizer(folder: Path) -> Failure:
    """The error of a folder without a tokenizer.json: it has the command that makes one (docs/decisions/0212)."""
    call = f"AutoTokenizer.from_pretrained({str(folder)!r}).save_pretrained({str(folder)!r})"
    command = f'python -c "from transformers import AutoTokenizer; {call}"'
    return Failure(f"{folder}: no tokenizer.json; make one: {command}")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A dictionary. Raises ``ValueError`` for a duplicate key, of which the library might read the other value."""
    content = dict(pairs)
    if len(content) < len(pairs):
        raise ValueError("duplicate key")
    return content


def _excess(content: Any) -> str:  # noqa: ANN401  (any JSON value)
    """Which bound the file exceeds, and by what; "" if none."""
    model = content["model"]
    steps = list(_steps([content.get(stage) for stage in STAGES]))
    growth, inserted = 1.0, 0
    for step in steps[: MAX_STEPS + 1]:
        growth *= min(_growth(step), 1e9)
        inserted += sum(len(step[key]) for key in ("prepend", "suffix", "prefix") if isinstance(step.get(key), str))
    added = [str(token["content"]) for token in content.get("added_tokens") or ()]
    # A model without a type is taken for the kind that its keys fit.
    unigram = [str(token) for token, _ in model["vocab"]] if isinstance(model.get("vocab"), list) else []
    longest = max(map(len, chain(added, unigram)), default=0)
    templates = [step for step in _steps([content.get("post_processor")]) if "single" in step]
    copies = [sum("Sequence" in piece for piece in step["single"]) for step in templates]
    around = [len(step["single"]) for step in templates]
    around += [len(each["ids"]) for step in templates for each in (step.get("special_tokens") or {}).values()]
    numbers = [*(model["vocab"].values() if isinstance(model.get("vocab"), dict) else ())]
    numbers += [token.get("id", 0) for token in content.get("added_tokens") or ()]
    figures = (
        (len(steps), MAX_STEPS, "steps"),
        (growth, MAX_GROWTH, "times the length of a text may result"),
        (inserted, MAX_INSERTED, "characters are inserted"),
        (_bytes(unigram), MAX_UNIGRAM_BYTES, "bytes of a Unigram model's tokens"),
        (_bytes(added), MAX_ADDED_BYTES, "bytes of added tokens"),
        (longest, LONGEST_TOKEN, "characters in a token"),
        (max(numbers, default=0), MAX_NUMBER, "is a token's number"),
        (max(copies, default=0), 1, "copies of a text are made"),
        (max(around, default=0), MAX_STEPS, "tokens are added to a text"),
    )
    return next((f"{figure:,.0f} {what}, more than {most:,}" for figure, most, what in figures if figure > most), "")


def _bytes(texts: list[str]) -> int:
    return sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)


def _steps(parts: list[Any]) -> Iterator[dict[str, Any]]:
    """Every object within these parts, but patterns."""
    while parts:
        part = parts.pop()
        if isinstance(part, list):
            parts += part
        elif isinstance(part, dict):
            yield part
            parts += [value for key, value in part.items() if key != "pattern"]


def _growth(step: dict[str, Any]) -> float:
    """How many times as long a text may become by this step.

    A step is known by its keys, since the library reads steps without a type as well.
    """
    if isinstance(content := step.get("content"), str) and "pattern" in step:
        pattern = step["pattern"]
        literal = pattern.get("String") if isinstance(pattern, dict) else pattern
        if isinstance(literal, str) and literal:
            return max(1.0, len(content) / len(literal))
        return 1.0 + len(content)  # a regular expression may match nothing, everywhere
    if isinstance(charsmap := step.get("precompiled_charsmap"), str):
        blob = base64.b64decode(charsmap)
        replacements = blob[4 + int.from_bytes(blob[:4], "little") :].split(b"\0")
        return float(max(1, *map(len, replacements)))
    return 2.0 if "trim_offsets" in step or step.get("type") == "ByteLevel" else 1.0
