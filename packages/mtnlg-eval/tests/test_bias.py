"""Bias: the log-ratio statistic and the counts of adjectives on answers that we chose, and the command."""

from __future__ import annotations

import json
import sys
from math import exp, log
from typing import TYPE_CHECKING, Any

import pytest

from mtnlg_eval import cli
from mtnlg_eval.studies.bias import holders, occupations, summary
from mtnlg_eval.studies.cooccurrence import ETHNICITY, GENDER, KINDS, TEMPLATES, counted, describe
from mtnlg_model.console import UsageFailure

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from lm_eval.api.instance import Instance

    from mtnlg_eval.scoring.generation import Draws
    from mtnlg_model.checkpoint.reader import Checkpoint

# TextBlob leaves its word list open until it is collected.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file.*en-lexicon:ResourceWarning")


class Opinionated:
    """Takes nurses for women, all others for men; says what it is told to of people."""

    def __init__(self, says: dict[str, str]) -> None:
        self.says = says
        self.asked: list[tuple[str, int, int]] = []

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        shares = {" male": 0.05, " man": 0.35, " female": 0.02, " woman": 0.08}
        swapped = {" male": " female", " man": " woman", " female": " male", " woman": " man"}
        pairs = [request.args for request in requests]
        return [(log(shares[swapped[word] if "nurse" in prompt else word]), False) for prompt, word in pairs]

    def samples(self, wanted: Sequence[Draws]) -> Iterator[list[str]]:
        for prompt, texts, _, sampling, stop in wanted:
            assert (sampling.temperature, sampling.top_p) == (1.0, 0.9)
            assert set(stop) == {".", "!", "?", "\n"}
            self.asked.append((prompt, texts, sampling.seed))
            yield [next(text for start, text in self.says.items() if prompt.startswith(start))] * texts


def test_the_log_ratio_is_that_of_summed_probabilities() -> None:
    lm: Any = Opinionated({})
    told = holders(lm, ["baker", "judge", "nurse"])
    assert [(exp(h.male), exp(h.female)) for h in told] == [
        pytest.approx(pair) for pair in ((0.4, 0.1), (0.4, 0.1), (0.1, 0.4))
    ]
    result = summary(told)
    assert result["male_likelier"] == pytest.approx(2 / 3)
    assert result["mean_log_ratio"] == pytest.approx(-log(4) / 3)
    assert list(result["by_occupation"])[-1] == "nurse"


def test_the_occupations_are_a_list_of_different_words() -> None:
    names = occupations()
    assert len(set(names)) == len(names) > 323
    assert names == sorted(names)
    assert all(name.isalpha() and name.islower() for name in names)


def test_every_identifier_stands_in_every_template_and_samples_come_in_portions_of_their_own() -> None:
    lm: Any = Opinionated({"": " nothing"})
    told = describe(lm, "ethnicity", 120)
    prompts = {template.format(who) for names in ETHNICITY.values() for who in names for template in TEMPLATES}
    assert {prompt for prompt, _, _ in lm.asked} == prompts
    assert len(lm.asked) == len(set(lm.asked)) == 3 * len(prompts)
    assert [count for _, count, _ in lm.asked[:3]] == [50, 50, 20]
    assert {group: len(texts) for group, texts in told.items()} == dict.fromkeys(ETHNICITY, 3 * len(TEMPLATES) * 120)


def test_adjectives_of_one_group_alone_are_told_with_their_rank() -> None:
    she = " a beautiful woman with a famous and beautiful voice"
    lm: Any = Opinionated(
        {"He": " a violent and famous man"} | dict.fromkeys(GENDER["female"], she) | {"The": " famous"}
    )
    told = counted(describe(lm, "gender", 2))
    groups = told["groups"]
    assert dict(groups["male"]["adjectives"])["violent"] == len(TEMPLATES) * 2
    assert [word for _, word in groups["male"]["alone"]] == ["violent"]
    assert [word for _, word in groups["female"]["alone"]] == ["beautiful"]
    assert groups["female"]["alone"][0][0] == 1  # twice in a sentence: before famous
    assert told["shared"] == 1
    assert groups["male"]["sentiment"]["negative"] < 0 < groups["female"]["sentiment"]["positive"]
    assert groups["female"]["sentiment"]["negative"] == 0


def command(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["mtnlg-eval", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


def test_the_command_writes_what_it_prints_and_asks_nothing_twice(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(KINDS, "gender", {"male": ("He",), "female": ("She",)})
    words = ("bias", checkpoint.directory, "--out", tmp_path, "--samples", 2, "--kinds", "occupation,gender")
    assert command(monkeypatch, *words, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told == json.loads((tmp_path / "bias.json").read_bytes())
    assert told["digest"] == checkpoint.digest
    assert "polarity" in (tmp_path / "bias.svg").read_text()
    monkeypatch.setattr("mtnlg_eval.scoring.generation.generate", None)
    monkeypatch.setattr("mtnlg_eval.scoring.decoder_lm.DecoderForward._run", None)
    before = (tmp_path / "bias.json").read_bytes()
    assert command(monkeypatch, *words) == 0
    assert "male likelier" in capsys.readouterr().out
    assert (tmp_path / "bias.json").read_bytes() == before


def test_a_kind_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert command(monkeypatch, "bias", tmp_path, "--out", tmp_path, "--kinds", "age") == UsageFailure.exit_status
