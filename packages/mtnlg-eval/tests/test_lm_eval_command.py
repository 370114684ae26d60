"""lm-eval's words and any task of lm-eval's: ten kinds, each equal to lm-eval's hf backend over the same model."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.tasks import TaskManager
from tokenizers import Tokenizer

from mtnlg_eval.results.folder import ResultFolder
from mtnlg_eval.scoring.decoder_lm import LocalEngine
from mtnlg_eval.scoring.open_model import ModelOptions, open_lm, open_model
from mtnlg_eval.tasks import lm_eval_tasks
from mtnlg_model.generation.generate import generate

if TYPE_CHECKING:
    from collections.abc import Callable

    from mtnlg_eval.results.result import Result

    Run = Callable[..., int]

DATA = json.loads(Path(__file__).with_name("task_kinds.json").read_text())
ROWS, KINDS = DATA["rows"], DATA["kinds"]
"""Nine kinds; the tenth is a group of them."""


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for --include_path."""
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    files = {"data_files": {"test": str(folder / "rows.jsonl")}, "cache_dir": str(folder / "cache")}
    shared = {"dataset_path": "json", "dataset_kwargs": files, "test_split": "test", "doc_to_text": "{{text}}"}
    for name, keys in KINDS.items():
        (folder / f"{name}.yaml").write_text(json.dumps({"task": name, **shared, **keys}))
    mean = {"metric": "acc", "aggregation": "mean", "weight_by_size": True}
    group = {"group": "choices", "task": ["choice", "choice_few"], "aggregate_metric_list": [mean]}
    (folder / "group.yaml").write_text(json.dumps(group))
    return folder


@pytest.fixture(autouse=True)
def _without_lm_evals_own_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Indexing them takes seconds."""
    monkeypatch.setattr(lm_eval_tasks, "lm_eval_manager", _manager)


@cache
def _manager(include_path: str | None, defaults: bool) -> TaskManager:
    del defaults
    return TaskManager(include_path=include_path, include_defaults=False)


def evaluated_by_hf(folder: Path, tasks: Path, names: list[str], **options: object) -> dict[str, Any]:
    """What lm-eval's own backend gives."""
    results: dict[str, Any] = simple_evaluate(
        "hf",
        model_args={"pretrained": str(folder), "dtype": "float32", "device": "cpu"},
        tasks=names,
        task_manager=TaskManager(include_path=str(tasks), include_defaults=False),
        bootstrap_iters=0,
        **options,
    )
    return results


def results_of(folder: Path) -> dict[str, Result]:
    return {result.task: result for result in ResultFolder(folder).results()}


def samples_of(folder: Path, task: str) -> list[dict[str, Any]]:
    path = ResultFolder(folder).samples(results_of(folder)[task])
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_ten_kinds_of_tasks_match_the_hf_backend(run: Run, hf: Path, tasks: Path, tmp_path: Path) -> None:
    names = [name for name in [*KINDS, "choices"] if name not in {"choice", "choice_few"}]  # the group has these
    words = ["--include_path", tasks, "--tasks", ",".join(names), "--output_path", tmp_path / "out", "--log_samples"]
    assert run("lm-eval", "--model_args", f"checkpoint={hf},store={tmp_path / 'store'}", *words) == 0
    theirs, ours = evaluated_by_hf(hf, tasks, names), results_of(tmp_path / "out")
    for name in KINDS:
        expected = {key: value for key, value in theirs["results"][name].items() if isinstance(value, float)}
        compared = {key: ours[name].lm_eval["results"][key] for key in expected if "stderr" not in key}
        assert compared
        assert compared == pytest.approx({key: expected[key] for key in compared}, rel=1e-4), name
        stored = ours[name].lm_eval["results"].keys()
        assert all(key.replace("_stderr", "") in stored for key in stored), name  # no error without its value
    last_word = ours["last_word"].metrics
    assert last_word["perplexity"].value == pytest.approx(exp(-last_word["log_likelihood"].value))
    assert last_word["perplexity"].stderr
    text = (tmp_path / "out" / "results.json").read_text()
    assert " at 0x" not in text  # an address, other in each process
    content = json.loads(text)
    (group,) = (groups["choices"].values() for groups in content["groups"].values())
    assert {each["rows"] for each in group} == {3}  # at 0 shots and at one
    samples = {name: theirs["samples"][name] for name in ("generate", "generate_filtered")}
    for name, rows in samples.items():
        assert [sample["resps"] for sample in samples_of(tmp_path / "out", name)] == [row["resps"] for row in rows]
    assert run("report", tmp_path / "out") == 0
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert all(name in page for name in KINDS)


def test_any_task_has_the_features_of_the_nine(run: Run, hf: Path, tasks: Path, tmp_path: Path) -> None:
    """By its name, from a YAML file, several shots and seeds, beside one of the nine."""
    rows, out = Path(__file__).parent / "rows", tmp_path / "out"
    words = ["--tasks", f"choice,{tasks / 'generate.yaml'},wic", "--include-path", tasks, "--data", rows]
    assert run("run", hf, *words, "--shots", "0,1", "--seeds", "1,2", "--out", out) == 0
    results = ResultFolder(out).results()
    counts = Counter((result.task, result.shots.asked) for result in results)
    assert counts == {(task, shots): 1 + int(shots) for task in ("wic", "choice", "generate") for shots in "01"}
    choice = next(result for result in results if result.task == "choice")
    assert (choice.metric, choice.model.name, choice.rows.count) == ("acc", "hf", 3)
    assert {"log_likelihood", "bits_per_byte"} <= choice.metrics.keys()
    line = samples_of(out, "choice")[1]
    assert (line["gold"], len(line["scores"]), line["shots"], line["truncated"]) == (1, 2, 1, False)
    logps = [sample["filtered_resps"][sample["gold"]][0] for sample in samples_of(out, "choice")]
    metrics = results_of(out)["choice"].metrics
    assert metrics["log_likelihood"].value == pytest.approx(fmean(logps))
    golds = [sample["arguments"][f"gen_args_{sample['gold']}"]["arg_1"] for sample in samples_of(out, "choice")]
    size = sum(len(gold.encode()) for gold in golds)
    assert metrics["bits_per_byte"].value == pytest.approx(-sum(logps) / log(2) / size)
    shots = {sample["arguments"]["gen_args_0"]["arg_0"] for sample in samples_of(out, "choice")}
    assert len(shots) == 3


def test_rows_of_a_group_are_dependent_under_every_filter(run: Run, hf: Path, tasks: Path, tmp_path: Path) -> None:
    """Of a task that is named as one of the nine, whose shots are its own."""
    (tmp_path / "rows.jsonl").write_text(
        "".join(json.dumps({"text": f"t{n}", "label": n // 4 % 2, "group": f"g{n // 4}"}) + "\n" for n in range(40))
    )
    content = json.loads((tasks / "choice.yaml").read_text()) | {
        "task": "piqa",
        "doc_to_text": "{{text}}",
        "filter_list": [{"name": name, "filter": [{"function": "take_first"}]} for name in ("one", "two")],
    }
    content["dataset_kwargs"] |= {"data_files": {"test": str(tmp_path / "rows.jsonl")}}
    (tmp_path / "task.yaml").write_text(json.dumps(content))
    assert run("run", hf, "--tasks", tmp_path / "task.yaml", "--out", tmp_path / "out") == 0
    (result,) = ResultFolder(tmp_path / "out").results()
    assert result.shots.asked == "0"
    assert result.metrics["acc,two"] == result.metrics["acc"]
    assert result.metrics["acc"].stderr


def test_bad_row_of_any_task_costs_only_that_row(
    run: Run, hf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"text": f"t{n}", "label": n % 2} for n in range(4)]
    rows[1]["label"] = 7
    rows[2]["text"] = "raise"
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "mine.py").write_text("def text(doc):\n    return 1 / 0 if doc['text'] == 'raise' else doc['text']\n")
    task: dict[str, Any] = {"task": "mine", "dataset_path": "json", "test_split": "test", **KINDS["choice"]}
    task["dataset_kwargs"] = {"data_files": {"test": str(tmp_path / "rows.jsonl")}, "cache_dir": str(tmp_path / "c")}
    (tmp_path / "mine.yaml").write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in task.items()) + TEXT)
    assert run("run", hf, "--tasks", tmp_path / "mine.yaml", "--trust-task-code", "--out", tmp_path / "out") == 0
    result = results_of(tmp_path / "out")["mine"]
    assert (result.rows.count, [row.number for row in result.rows.failed]) == (2, [1, 2])
    error = capsys.readouterr().err
    assert "mine 0: row 1 is skipped: its answer is neither a choice nor the number of one" in error
    assert "mine 0: row 2 is skipped: ZeroDivisionError: division by zero" in error


def test_prompts_without_a_context_begin_as_the_hf_backends_do(run: Run, hf: Path, tasks: Path, tmp_path: Path) -> None:
    """As of Qwen's chat models: no token begins texts, and <|im_end|> ends them beside <|endoftext|>."""
    names = ["choice_mutual", "perplexity"]
    tokenizer = Tokenizer.from_file(str(hf / "tokenizer.json"))
    tokenizer.add_special_tokens(["<|im_end|>"])
    tokenizer.save(str(hf / "tokenizer.json"))
    names_of_tokens = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": None, "eos_token": "<|im_end|>"}
    (hf / "tokenizer_config.json").write_text(json.dumps(names_of_tokens))
    words = ["--include_path", tasks, "--tasks", ",".join(names), "--output_path", tmp_path / "out"]
    assert run("lm-eval", "--model_args", f"pretrained={hf}", *words) == 0
    theirs = evaluated_by_hf(hf, tasks, names)
    for name in names:
        ours = [sample["filtered_resps"] for sample in samples_of(tmp_path / "out", name)]
        logps = [[float(np.ravel(each)[0]) for each in answers] for answers in ours]
        expected = [[float(np.ravel(each)[0]) for each in row["filtered_resps"]] for row in theirs["samples"][name]]
        assert np.allclose(logps, expected, atol=1e-4), name


TEXT = "doc_to_text: !function mine.text\n"
TEMPLATE = (
    "{% for message in messages %}{{ bos_token }}<{{ message.role }}>{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.mark.parametrize("multiturn", [True, False])
def test_prompts_of_a_chat_template_are_the_hf_backends(
    run: Run, hf: Path, tasks: Path, tmp_path: Path, multiturn: bool
) -> None:
    names = ["choice_few", "generate"]
    words = ["--include_path", tasks, "--tasks", ",".join(names), "--output_path", tmp_path / "out"]
    words += ["--apply_chat_template", "--system_instruction", "Be brief."]
    words += ["--fewshot_as_multiturn", str(multiturn).lower()]
    (hf / "chat_template.jinja").write_text(TEMPLATE)
    assert run("lm-eval", "--model_args", f"checkpoint={hf}", *words) == 0
    theirs = evaluated_by_hf(
        hf, tasks, names, apply_chat_template=True, fewshot_as_multiturn=multiturn, system_instruction="Be brief."
    )
    for name in names:
        ours, expected = samples_of(tmp_path / "out", name), theirs["samples"][name]
        prompts = [[pair["arg_0"] for pair in sample["arguments"].values()] for sample in ours]
        assert prompts == [[pair[0] for pair in sample["arguments"]] for sample in expected]
        assert all("<system>Be brief." in text and text.endswith("<assistant>") for texts in prompts for text in texts)
        turns = [text.count("<assistant>") for texts in prompts for text in texts]
        assert set(turns) == {2 if multiturn and name == "choice_few" else 1}
        answers = [sample["filtered_resps"] for sample in ours]
        if name == "generate":
            assert answers == [sample["filtered_resps"] for sample in expected]
        else:
            for mine, sample in zip(answers, expected, strict=True):
                assert [float(logp) for logp, _ in mine] == pytest.approx([x for x, _ in sample["filtered_resps"]])


def test_chat_answer_excludes_its_reasoning(hf: Path, tmp_path: Path) -> None:
    request = Instance("generate_until", {}, ("The cook", {"until": [], "max_gen_toks": 20}), 0)
    lm = open_lm(open_model(hf))
    assert isinstance(lm.engine, LocalEngine)
    (tokens,) = generate(lm.engine.decoder, [lm.tok_encode("The cook")], 20, vocabulary=500)
    (text,) = lm.generate_until([request])
    end = tokens[7]
    (hf / "generation_config.json").write_text(json.dumps({"eos_token_id": [499, end]}))
    lm = open_lm(open_model(hf))
    assert lm.generate_until([request]) == [lm._decode(tokens[: tokens.index(end)], ())]
    thought = text[len(text) // 2 :][:2]
    (hf / "generation_config.json").unlink()
    store = tmp_path / "answers.sqlite"
    for options, expected in ((ModelOptions(), text), (ModelOptions(think_end_token=thought), "")):
        lm = open_lm(open_model(hf, options), store)
        assert lm.generate_until([request]) == [expected or text.rpartition(thought)[2].lstrip()]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--model hf --tasks choice", "--model: give the model as --model_args checkpoint=MODEL"),
        ("--tasks choice", "checkpoint=MODEL is missing"),
        ("--tasks choice --model_args checkpoint=x,tp=2", "tp=2: write layout=tp=2,pp=2,dp=1"),
        ("--tasks choice --model_args checkpoint=x --use_cache y", "--model_args store=DIR keeps"),
    ],
)
def test_a_wrong_argument_is_one_line(  # noqa: PLR0917  (fixtures)
    words: str, message: str, run: Run, tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("lm-eval", "--include_path", tasks, "--output_path", tmp_path, *words.split()) in {1, 2}
    *_, last = capsys.readouterr().err.splitlines()
    assert last.startswith("mtnlg-eval: ")
    assert message in last
