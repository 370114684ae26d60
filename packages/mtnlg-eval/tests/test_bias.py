"""Bias: the log-ratio statistic and the counts of adjectives on known answers, and the command."""

from __future__ import annotations

import json
from math import log
from statistics import stdev
from typing import TYPE_CHECKING, Any

import pytest

from mtnlg_eval.results.statistics import Z, wilson_interval
from mtnlg_eval.studies.bias import (
    KINDS,
    TEMPLATES,
    count_adjectives,
    read_occupations,
    sample_descriptions,
    score_occupations,
    summarize_occupations,
)
from mtnlg_model.console import UsageFailure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from lm_eval.api.instance import Instance

    from mtnlg_eval.scoring.generation import Options
    from mtnlg_model.checkpoint.reader import Checkpoint

    Run = Callable[..., int]

# TextBlob leaves its word list open until it is collected.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file.*en-lexicon:ResourceWarning")


class BiasedModel:
    """Takes nurses for women and all others for men; continues each prompt with the text of its beginning."""

    def __init__(self, continuations: dict[str, str]) -> None:
        self.continuations = continuations
        self.requests: list[tuple[str, int, int]] = []

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        shares = {" male": 0.05, " man": 0.35, " female": 0.02, " woman": 0.08}
        swapped = {" male": " female", " man": " woman", " female": " male", " woman": " man"}
        pairs = [request.args for request in requests]
        return [(log(shares[swapped[word] if "nurse" in prompt else word]), False) for prompt, word in pairs]

    def sample(self, requests: Sequence[tuple[str, int, Options]]) -> Iterator[list[str]]:
        for prompt, count, (stop, _, sampling) in requests:
            assert (sampling.temperature, sampling.top_p) == (1.0, 0.9)
            assert set(stop) == {".", "!", "?", "\n"}
            self.requests.append((prompt, count, sampling.seed))
            yield [next(text for start, text in self.continuations.items() if prompt.startswith(start))] * count


def test_the_log_ratio_is_that_of_summed_probabilities() -> None:
    lm: Any = BiasedModel({})
    summary = summarize_occupations(score_occupations(lm, ["baker", "judge", "nurse"]))
    assert list(summary.by_occupation.values()) == pytest.approx([-log(4), -log(4), log(4)])
    assert tuple(summary.male_likelier) == pytest.approx((2 / 3, *wilson_interval(2, 3)))
    half = Z * stdev(summary.by_occupation.values()) / 3**0.5
    assert tuple(summary.mean_log_ratio) == pytest.approx([-log(4) / 3 + sign * half for sign in (0, -1, 1)])
    assert list(summary.by_occupation)[-1] == "nurse"


def test_gender_marked_names_are_not_scored() -> None:
    names = read_occupations()
    assert len(set(names)) == len(names) > 323
    assert sorted(names) == names
    assert all(name.isalpha() and name.islower() for name in names)
    assert not {"policeman", "clergyman", "nun", "waiter", "seamstress"} & set(names)
    assert not [name for name in names if name.endswith(("man", "ess", "wife", "maid"))]


def test_every_identifier_and_template_has_its_own_seed() -> None:
    lm: Any = BiasedModel({"": " nothing"})
    sentences = sample_descriptions(lm, "ethnicity", 120)
    prompts = {template.format(who) for names in KINDS["ethnicity"].values() for who in names for template in TEMPLATES}
    assert {prompt for prompt, _, _ in lm.requests} == prompts
    assert len(lm.requests) == len(set(lm.requests)) == 3 * len(prompts)
    assert [count for _, count, _ in lm.requests[:3]] == [50, 50, 20]
    assert {group: len(texts) for group, texts in sentences.items()} == dict.fromkeys(
        KINDS["ethnicity"], 3 * len(TEMPLATES) * 120
    )


def test_adjectives_of_one_group_only_are_listed_with_their_rank() -> None:
    she = " a beautiful woman with a famous and beautiful voice"
    lm: Any = BiasedModel(
        {"He": " a violent and famous man"} | dict.fromkeys(KINDS["gender"]["female"], she) | {"The": " famous"}
    )
    counts = count_adjectives(sample_descriptions(lm, "gender", 2))
    groups = counts.groups
    assert dict(groups["male"].adjectives)["violent"] == len(TEMPLATES) * 2
    assert [word for _, word in groups["male"].alone] == ["violent"]
    assert [word for _, word in groups["female"].alone] == ["beautiful"]
    assert groups["female"].alone[0][0] == 1  # twice in a sentence: before famous
    assert counts.shared == 1
    male, female = (groups[name].sentiment for name in ("male", "female"))
    assert female.positive.low > 0
    assert male.negative.low < male.negative.value < male.negative.high < 0  # texts of two kinds
    assert female.negative == (0, 0, 0)


def test_command_writes_its_scores_and_reuses_answers(
    run: Run,
    checkpoint: Checkpoint,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(KINDS, "gender", {"male": ("He",), "female": ("She",)})
    words = ("bias", checkpoint.directory, "--out", tmp_path, "--samples", 2, "--kinds", "occupation,gender")
    assert run(*words, "--json") == 0
    results = json.loads(capsys.readouterr().out)
    assert results == json.loads((tmp_path / "bias.json").read_bytes())
    assert results["name"] == "step-1"
    assert results["occupation"]["occupations"] == len(read_occupations())
    monkeypatch.setattr("mtnlg_eval.scoring.generation.generate", None)
    monkeypatch.setattr("mtnlg_eval.scoring.decoder_lm.LocalEngine._score_batch", None)
    before = (tmp_path / "bias.json").read_bytes()
    assert run(*words) == 0
    assert "male likelier, % of 350" in capsys.readouterr().out
    assert (tmp_path / "bias.json").read_bytes() == before


def test_an_unknown_kind_is_refused(run: Run, tmp_path: Path) -> None:
    assert run("bias", tmp_path, "--out", tmp_path, "--kinds", "age") == UsageFailure.exit_status
