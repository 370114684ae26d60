"""Detect a text's language, with CLD2 or a fastText model (lid.176, GlotLID), and select the wanted languages.

    CLD2       reads HTML too; score: the share of the text's bytes in its main language
    a model    reads text as one line; score: the language's probability; language: its label without "__label__"

A fastText ``.bin`` is parsed by fastText's C++, which trusts its input: open only files whose origin you know.
"""

from __future__ import annotations

import re
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import pycld2
from pydantic import model_validator

from mtnlg_data.console import Failure
from mtnlg_data.files import regular
from mtnlg_data.quantities import share
from mtnlg_data.settings import Settings, setting
from mtnlg_data.transfer.urls import FilePath  # noqa: TC001  (pydantic reads the annotation)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ENGLISH = "en"
UNKNOWN = "un"
#: C0, DEL and C1 controls except tab, line feed, form feed and carriage return: cld2 refuses them.
CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f]")
SAMPLE_CHARACTERS, LEAST_SAMPLE = 1 << 16, 2000  # of a page; bytes of text in them
LABEL = "__label__"
#: ISO 639 or BCP 47 code → CLD2's code of the language, where they differ.
ALIASES = {
    "fil": "tl",
    "he": "iw",
    "jv": "jw",
    "nb": "no",
    "zh-Hans": "zh",
}
#: Characters of a text per character of its English original, rounded; 1 for languages not listed. Measured on
#: translated messages of at least 40 characters, without placeholders, from Django 5.2 and Debian's catalogs; the
#: others of the 30 largest languages have 0.9 to 1.3. The value for Ethiopic is from only 35 messages, in Tigrinya.
LENGTH_RATIOS = {
    "am": 0.6,
    "ar": 0.85,
    "iw": 0.75,
    "ja": 0.5,
    "ko": 0.5,
    "th": 0.85,
    "ti": 0.6,
    "zh": 0.3,
    "zh-Hant": 0.3,
}
LABELS_SHOWN = 5


class Language(NamedTuple):
    """A text's main language, and its score in [0, 1]."""

    code: str
    score: float | None  # None where a shard does not have it


def language_code(name: str) -> str:
    """CLD2's code of a language; a name that is not an alias, such as a model's label, is returned as it is."""
    return ALIASES.get(name, name)


def text_length(given: int | None, english: int, language: str) -> int:
    """Characters: ``given``, or as many in ``language`` as correspond to ``english`` characters of English."""
    return round(english * LENGTH_RATIOS.get(language_code(language), 1)) if given is None else given


def check_language(key: str, name: str) -> None:
    """Raise ``ValueError``, naming the key, for a language that CLD2 does not detect."""
    codes, begin = {code for _, code in pycld2.LANGUAGES}, language_code(name[:2].lower())
    if language_code(name) not in codes:
        hint = f"did you mean {begin}? " if begin in codes else ""
        raise ValueError(f"{key} = {name!r}: not a language of CLD2; {hint}its codes are like en, zh, zh-Hant, pt, th")


class LanguageSettings(Settings):
    """Which languages are wanted, and what tells them."""

    languages: tuple[str, ...] = setting(
        (ENGLISH,),
        "Wanted languages: ISO's codes (en, he, zh, zh-Hant), or labels of the language model; all if none is given.",
        paper="en",
    )
    language_model: FilePath | None = setting(
        None,
        "A fastText .bin, from people whom you trust, that detects languages, such as lid.176, instead of CLD2.",
        paper="CLD2",
    )
    min_language_score: float = share(0.0, "Minimum share of the text (CLD2) or probability (model) of its language.")

    @model_validator(mode="after")
    def _check_codes(self) -> Self:
        for code in self.languages if self.language_model is None else ():
            check_language("languages", code)
        return self

    def check_model(self) -> None:
        """Open the model, if one is given. Raises ``Failure`` if it cannot be used or lacks a wanted language."""
        if self.language_model is None:
            return
        labels = _FastText(self.language_model).labels()
        if missing := [code for code in self.languages if language_code(code) not in map(language_code, labels)]:
            near = [label for label in labels if label.startswith(missing[0][:2])] or labels
            raise Failure(
                f"{self.language_model}: no language {missing[0]!r}; set languages to some of its {len(labels)}, "
                f"such as {', '.join(near[:LABELS_SHOWN])}"
            )

    def refuse(self, language: Language | None) -> str | None:
        """Reason to drop a document of this language; None if it is wanted."""
        codes = [*map(language_code, self.languages)]
        if codes and (language is None or language_code(language.code) not in codes):
            return "other_language"
        score = (language and language.score) or 0.0
        return "language_score" if score < self.min_language_score else None


def load_fasttext(path: Path, hint: str) -> Any:  # noqa: ANN401  (an extra)
    """Load a fastText model. Raises ``Failure`` if fastText is missing, or, with this hint, if the file is no model."""
    if find_spec("fasttext") is None:
        raise Failure(f'{path}: a fastText model needs fastText: pip install "mtnlg-data[fasttext]"')
    import fasttext  # noqa: PLC0415

    try:
        return fasttext.load_model(str(regular(path)))
    except (ValueError, OSError, MemoryError) as error:
        raise Failure(f"{path}: {getattr(error, 'strerror', None) or error}; {hint}") from None


def open_identifier(model: Path | None) -> Callable[[str], Language]:
    """The language detector for plain text: this fastText model, opened once per worker, or CLD2."""
    return detect_language if model is None else _open_model(model, model.stat().st_mtime_ns)


@lru_cache(maxsize=1)
def _open_model(model: Path, changed: int) -> _FastText:
    del changed
    return _FastText(model)


def detect_language(text: str, *, html: bool = False) -> Language:
    """The text's main language according to CLD2; ``un`` with score 0 if it finds none.

    On a long page only the beginning is read, unless CLD2 calls the result unreliable or finds little text there.
    """
    try:
        is_reliable, size, languages = _detect(text[:SAMPLE_CHARACTERS] if html else text, html=html)
        if html and len(text) > SAMPLE_CHARACTERS and not (is_reliable and size >= LEAST_SAMPLE):
            _, _, languages = _detect(text, html=html)
    except pycld2.error:
        return Language(UNKNOWN, 0.0)
    return Language(str(languages[0][1]), languages[0][2] / 100)


def _detect(text: str, *, html: bool) -> tuple[Any, ...]:
    try:
        return tuple(pycld2.detect(text.encode(errors="replace"), isPlainText=not html))
    except pycld2.error:
        return tuple(pycld2.detect(CONTROL_CHARACTERS.sub("", text).encode(errors="replace"), isPlainText=not html))


class _FastText:
    """A fastText model whose labels are languages."""

    def __init__(self, path: Path) -> None:
        self._model = load_fasttext(path, "language_model must be a fastText .bin")

    def __call__(self, text: str) -> Language:
        labels, scores = self._model.predict(text.encode(errors="replace").decode().replace("\n", " "))
        if not labels:
            return Language(UNKNOWN, 0.0)
        return Language(labels[0].removeprefix(LABEL), min(1.0, float(scores[0])))

    def labels(self) -> list[str]:
        """All languages of the model, sorted."""
        # With hierarchical softmax, a threshold of 0 leaves out labels whose probability is under 1e-5.
        labels, _ = self._model.predict("text", k=-1, threshold=-1.0)
        return sorted(label.removeprefix(LABEL) for label in labels)
