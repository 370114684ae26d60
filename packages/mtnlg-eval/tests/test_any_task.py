"""Any lm-eval task can use the model, with every type of request that lm-eval has."""

from __future__ import annotations

import json
from math import exp
from typing import TYPE_CHECKING, Any

import pytest
from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.tasks import TaskManager

from mtnlg_eval.scoring.decoder_lm import DecoderLM

if TYPE_CHECKING:
    from pathlib import Path

    from mtnlg_model.checkpoint.reader import Checkpoint

TEXTS = ["The cook thanked the sailors.", "A ring of gold lay in the grass."]
KINDS: dict[str, dict[str, Any]] = {
    "loglikelihood": {"doc_to_text": "{{text}}", "doc_to_target": " end"},
    "loglikelihood_rolling": {"doc_to_text": "", "doc_to_target": "{{text}}"},
    "multiple_choice": {"doc_to_text": "{{text}}", "doc_to_choice": ["yes", "no"], "doc_to_target": 0},
    "generate_until": {
        "doc_to_text": "{{text}}",
        "doc_to_target": "{{text}}",
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": 4},
    },
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_request_is_answered(kind: str, checkpoint: Checkpoint, tmp_path: Path) -> None:
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    task = {
        "task": kind,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(tmp_path / "texts.jsonl")}, "cache_dir": str(tmp_path)},
        "test_split": "test",
        "output_type": kind,
        **KINDS[kind],
    }
    lm = DecoderLM.open(checkpoint)
    results = simple_evaluate(lm, tasks=[task], task_manager=TaskManager(include_defaults=False), bootstrap_iters=0)
    answers = [sample["filtered_resps"][0] for sample in results["samples"][kind]]
    assert len(answers) == len(TEXTS)
    if kind == "loglikelihood_rolling":
        requests = [Instance(kind, {}, (text,), n) for n, text in enumerate(TEXTS)]
        nats, words = sum(lm.loglikelihood_rolling(requests)), sum(len(text.split()) for text in TEXTS)
        assert results["results"][kind]["word_perplexity,none"] == pytest.approx(exp(-nats / words))
    if kind == "generate_until":
        options = KINDS[kind]["generation_kwargs"]
        requests = [Instance(kind, {}, (text, dict(options)), n) for n, text in enumerate(TEXTS)]
        assert answers == lm.generate_until(requests)
