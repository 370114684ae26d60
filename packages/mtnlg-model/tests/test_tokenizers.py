"""Two tokenizer.json are one tokenizer where they give the same text the same tokens, however they are written."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mtnlg_model.checkpoint.manifest import TOKENIZER
from mtnlg_model.tokenizer import tokenizer_difference

Json = dict[str, Any]
PADDING = {"strategy": {"Fixed": 9}, "direction": "Right", "pad_id": 0, "pad_type_id": 0, "pad_token": "!"}
BEGINS = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [291], "tokens": ["<|endoftext|>"]}},
}


def model(**parts: Callable[[Any], Any]) -> Callable[[Json], Json]:
    """A change of these parts of the model."""
    return lambda content: (
        content | {"model": content["model"] | {key: parts[key](content["model"][key]) for key in parts}}
    )


swap = model(vocab=lambda numbers: {**numbers, "a": numbers["b"], "b": numbers["a"]})
SAME: dict[str, Callable[[Json], Json]] = {
    "another order": lambda content: dict(reversed(content.items())),
    "merges as texts": model(merges=lambda merges: [" ".join(pair) for pair in merges]),
    "padding": lambda content: content | {"padding": PADDING},
    "a token before every text": lambda content: content | {"post_processor": BEGINS},
    "no special token": lambda content: (
        content | {"added_tokens": [token | {"special": False} for token in content["added_tokens"]]}
    ),
}
OTHER: dict[str, tuple[Callable[[Json], Json], str]] = {
    "two numbers swapped": (swap, "'a' is "),
    "one merge less": (model(merges=lambda merges: merges[:-1]), "model of "),
    "no capitals": (lambda content: content | {"normalizer": {"type": "Lowercase"}}, "normalizer of "),
    "no end token": (lambda content: content | {"added_tokens": []}, "'<|endoftext|>' is "),
}


def rewritten(path: Path, change: Callable[[Json], Json], folder: Path) -> Path:
    other = folder / TOKENIZER
    other.write_text(json.dumps(change(json.loads(path.read_text())), indent=3))
    return other


@pytest.mark.parametrize("case", SAME)
def test_the_same_tokens_are_the_same_tokenizer(case: str, tokenizer_path: Path, tmp_path: Path) -> None:
    other = rewritten(tokenizer_path, SAME[case], tmp_path)
    assert other.read_bytes() != tokenizer_path.read_bytes()
    assert tokenizer_difference(tokenizer_path, other) == tokenizer_difference(other, tokenizer_path) == ""


@pytest.mark.parametrize("case", OTHER)
def test_other_tokens_are_another_tokenizer(case: str, tokenizer_path: Path, tmp_path: Path) -> None:
    change, reason = OTHER[case]
    other = rewritten(tokenizer_path, change, tmp_path)
    for pair in ((tokenizer_path, other), (other, tokenizer_path)):
        difference = tokenizer_difference(*pair)
        assert difference.startswith(reason)
        assert all(str(path) in difference for path in pair)
