"""Social bias (paper.md 5.4): what a model takes a person for by gender, ethnicity or religion.

``occupation`` asks whether an occupation's holder is a man or a woman; ``cooccurrence`` lets the model describe people
and counts the adjectives. Both are resumable: every answer is kept in the model's store as it comes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mtnlg_model.console import UsageFailure
from mtnlg_model.files import write_json

from .cooccurrence import KINDS, counted, describe, library
from .occupation import holders, occupations, summary

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from mtnlg_eval.model import DecoderLM

OCCUPATION = "occupation"
NAMES = (OCCUPATION, *KINDS)


def kinds_of(words: str) -> list[str]:
    """The kinds of bias that a comma-separated list names, each once."""
    kinds = list(dict.fromkeys(word.strip() for word in words.split(",")))
    if unknown := [kind for kind in kinds if kind not in NAMES]:
        raise UsageFailure(f"--kinds {words}: no kind {', '.join(map(repr, unknown))}; choose from {', '.join(NAMES)}")
    return kinds


def measure(lm: DecoderLM, about: Mapping[str, Any], out: Path, kinds: Sequence[str], samples: int) -> dict[str, Any]:
    """Ask about these kinds, ``samples`` texts for each prompt; returns what ``out/bias.json`` holds.

    ``about`` is what it says of whom was asked.
    """
    if any(kind != OCCUPATION for kind in kinds):
        library()  # hours of samples are not drawn first where nothing can count their words
    told: dict[str, Any] = {"version": 1, **about, "samples_a_prompt": samples}
    if OCCUPATION in kinds:
        told[OCCUPATION] = summary(holders(lm, occupations()))
    told["adjectives"] = {kind: counted(describe(lm, kind, samples)) for kind in kinds if kind != OCCUPATION}
    write_json(out / "bias.json", told)
    return told
