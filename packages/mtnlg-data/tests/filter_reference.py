"""The rules of Gopher, C4 and FineWeb for one text at a time, as plain as they can be written, on given words."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

import regex

from mtnlg_data.text.characters import MARK, TERMINAL, character_table

if TYPE_CHECKING:
    import numpy as np

#: A text that every rule keeps.
PROSE = (
    "The harbour of the town was quiet that morning, and nobody had expected the ships to return. The wind came from "
    "the north; it carried rain, and with it the smell of the sea. A boy ran along the wall to be the first who could "
    "tell the news. Many people would have laughed at him on another day. But on this one they followed, one by one."
)
STOP_WORDS = {"the", "be", "to", "of", "and", "that", "have", "with"}
CITATION = re.compile(r"\[\d*\]|\[edit\]|\[citation needed\]")
POLICIES = ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies")


def has_kind(character: str, kind: np.uint8) -> bool:
    return bool(character_table()[ord(character)] & kind)


def repeated(parts: list[str]) -> tuple[float, int]:
    """Share of the parts that repeat an earlier one, and the characters in them."""
    again = [part for n, part in enumerate(parts) if part in parts[:n]]
    return len(again) / len(parts), sum(map(len, again))


def repetition(text: str, words: list[str]) -> list[float]:
    paragraphs, paragraph_characters = repeated(re.split(r"\n\n+", text.strip()))
    lines, line_characters = repeated(re.split(r"\n+", text))
    shares = [paragraphs, paragraph_characters / len(text), lines, line_characters / len(text)]
    for n in (2, 3, 4):
        grams = Counter(" ".join(words[i : i + n]) for i in range(len(words) - n + 1))
        top = max(grams, key=lambda gram: grams[gram], default="")
        shares.append(len(top) * grams[top] / len(text))
    for n in range(5, 11):
        seen, total, i = set(), 0, 0
        while i + n <= len(words):
            gram = "".join(words[i : i + n])
            total += len(gram) if gram in seen else 0
            i += n if gram in seen else 1
            seen.add(gram)
        shares.append(total / len(text))
    return shares


def gopher(text: str, words: list[str]) -> list[float]:
    plain = [word for word in words if not all(has_kind(character, MARK) for character in word)]
    mean = sum(map(len, plain)) / max(1, len(plain))
    lines = text.splitlines()
    bullets = [line for line in lines if line.lstrip()[:1] in {"•", "-"} and line.strip()]
    ellipses = [line for line in lines if line.rstrip().endswith(("...", "…"))]
    return [
        len(plain),
        len(plain),
        mean,
        mean,
        text.count("#") / len(words),
        (text.count("...") + text.count("…")) / len(words),
        len(bullets) / len(lines),
        len(ellipses) / len(lines),
        sum(any(map(str.isalpha, word)) for word in words) / len(words),
        len(STOP_WORDS & {*words}),
    ]


def fineweb(text: str, words: list[str]) -> list[float]:
    lines = [line for line in text.split("\n") if line.strip()]
    return [
        sum(has_kind(line[-1], TERMINAL) for line in lines) / len(lines),
        sum(len(line) <= 30 for line in lines) / len(lines),
        repeated(lines)[1] / len(text.replace("\n", "")),
        text.count("\n") / len(words),
    ]


def c4(text: str, *, terminal: bool, fewest_words: int) -> str | None:
    """The lines that are kept; None where the text goes for its words or brackets."""
    kept = []
    for line in map(str.strip, text.splitlines()):
        clean = CITATION.sub("", line)
        lower = clean.lower()
        if any(len(word) > 1000 for word in line.split()):
            continue
        if terminal and (not clean.endswith((".", "?", "!", '"', "'")) or clean.endswith("...")):
            continue
        if len(line.split()) < fewest_words:
            continue
        if "lorem ipsum" in lower or ("{" in lower and "javascript" not in lower):
            return None
        if "javascript" not in lower and not any(phrase in lower for phrase in POLICIES):
            kept.append(clean)
    return "\n".join(kept).strip()


def unicode_words(text: str) -> list[str]:
    """What stands between the word boundaries of UAX #29 and is no white space; equal marks in a row are one word."""
    words: list[str] = []
    last = " "
    for part in filter(None, regex.split(r"(?w)\b", text)):
        if part[0] == last[0] and not re.match(r"[\w\s\u200b]", part):
            words[-1] += part
        elif not re.match(r"[\s\u200b\u0301\ufe0f]", part):
            words.append(part)
        last = part
    return words
