"""lm-eval's own command over a checkpoint: ten kinds of tasks, each equal to its hf backend over the same model."""

from __future__ import annotations

import json
import logging
import shutil
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.tasks import TaskManager
from tokenizers import Tokenizer

from mtnlg_eval import cli
from mtnlg_eval.scoring.decoder_lm import DecoderLM
from mtnlg_eval.scoring.lm_eval_command import CheckpointLM
from mtnlg_model.checkpoint.reader import Checkpoint
from mtnlg_model.console import progress
from mtnlg_model.convert.huggingface import export_huggingface, import_huggingface
from mtnlg_model.generation.generate import generate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

ROWS = [
    {"text": "The cook thanked the sailors.", "question": "Who thanked?", "label": 0, "number": "4"},
    {"text": "A ring of gold lay in the grass.", "question": "What lay there?", "label": 1, "number": "7"},
    {"text": "Bees make honey in spring.", "question": "Who makes honey?", "label": 1, "number": "9"},
]
CHOICE = {"output_type": "multiple_choice", "doc_to_choice": ["the cook", "the ring"], "doc_to_target": "label"}
STOP = {"until": ["\n", "e"], "max_gen_toks": 6, "do_sample": False}
GENERATE = {"output_type": "generate_until", "doc_to_target": "{{number}}", "generation_kwargs": STOP}
FIRST_NUMBER = {"function": "regex", "regex_pattern": "(\\d+)"}
KINDS: dict[str, dict[str, Any]] = {
    "choice": CHOICE,
    "choice_norm": CHOICE | {"metric_list": [{"metric": "acc_norm", "aggregation": "mean", "higher_is_better": True}]},
    "choice_mutual": CHOICE | {"metric_list": [{"metric": "acc_mutual_info", "aggregation": "mean"}]},
    "choice_of_contexts": CHOICE
    | {"doc_to_text": "label", "doc_to_choice": "{{[text, question]}}", "doc_to_target": " and so on"},
    "choice_few": CHOICE | {"num_fewshot": 1, "description": "Answer.\n\n"},
    "last_word": {"output_type": "loglikelihood", "doc_to_target": " {{number}}"},
    "perplexity": {"output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{text}}"},
    "generate": GENERATE | {"metric_list": [{"metric": "exact_match", "aggregation": "mean"}]},
    "generate_filtered": GENERATE
    | {
        "metric_list": [{"metric": "exact_match", "aggregation": "mean"}],
        "filter_list": [{"name": "number", "filter": [FIRST_NUMBER, {"function": "take_first"}]}],
    },
}
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
def _in_this_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A folder outside any repository, without lm-eval's own tasks (half a minute), and its logging for this time."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.setattr("lm_eval.tasks.TaskManager", partial(TaskManager, include_defaults=False))
    monkeypatch.setattr("lm_eval.evaluator.add_env_info", lambda _: None)  # ten seconds
    root, ours = logging.getLogger(), logging.getLogger("lm_eval")
    before = root.handlers[:], root.level, ours.level
    yield
    root.handlers[:], level, ours.level = before
    root.setLevel(level)


def run(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["mtnlg-eval", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


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


def results_under(folder: Path) -> dict[str, Any]:
    (path,) = folder.rglob("results_*.json")
    content: dict[str, Any] = json.loads(path.read_bytes())
    return content


def test_ten_kinds_of_tasks_give_what_the_hf_backend_gives(
    checkpoint: Checkpoint,
    tasks: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    names = [name for name in [*KINDS, "choices"] if name not in {"choice", "choice_few"}]  # the group has these
    words = ["--include_path", tasks, "--tasks", ",".join(names), "--output_path", "out", "--log_samples"]
    model = f"checkpoint={checkpoint.directory},store={tmp_path / 'store'}"
    assert run(monkeypatch, "lm-eval", "--model_args", model, *words) == 0
    output = capfd.readouterr()
    assert "choice_few" in output.out
    assert "fatal: not a git repository" not in output.err
    ours = results_under(tmp_path / "out")
    assert {path.name.rpartition("_")[0] for path in (tmp_path / "out").rglob("samples_*.jsonl")} >= {
        f"samples_{name}" for name in KINDS
    }
    with progress("export", 1) as advance:
        export_huggingface(checkpoint, tmp_path / "gpt2", advance)
    theirs = evaluated_by_hf(tmp_path / "gpt2", tasks, names)
    for name in [*KINDS, "choices"]:
        expected = {key: value for key, value in theirs["results"][name].items() if isinstance(value, float)}
        compared = {key: ours["results"][name][key] for key in expected if "stderr" not in key}
        assert compared
        assert compared == pytest.approx({key: expected[key] for key in compared}, rel=1e-4), name
    samples = {name: theirs["samples"][name] for name in ("generate", "generate_filtered")}
    for name, rows in samples.items():
        (path,) = (tmp_path / "out").rglob(f"samples_{name}_2*.jsonl")
        texts = [json.loads(line)["resps"] for line in path.read_text().splitlines()]
        assert texts == [row["resps"] for row in rows]


def test_prompts_without_a_context_begin_as_the_hf_backends_do(
    write_checkpoint: Callable[..., Path], tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of Qwen's chat models: no token begins texts, and <|im_end|> ends them beside <|endoftext|>."""
    names = ["choice_mutual", "perplexity"]
    with progress("export", 1) as advance:
        export_huggingface(Checkpoint.open(write_checkpoint(tmp_path / "checkpoints")), tmp_path / "hf", advance)
    tokenizer = Tokenizer.from_file(str(tmp_path / "hf" / "tokenizer.json"))
    tokenizer.add_special_tokens(["<|im_end|>"])
    tokenizer.save(str(tmp_path / "hf" / "tokenizer.json"))
    names_of_tokens = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": None, "eos_token": "<|im_end|>"}
    (tmp_path / "hf" / "tokenizer_config.json").write_text(json.dumps(names_of_tokens))
    words = ["--include_path", tasks, "--tasks", ",".join(names), "--output_path", "out", "--log_samples"]
    assert run(monkeypatch, "lm-eval", "--model_args", f"checkpoint=hf,store={tmp_path / 'store'}", *words) == 0
    theirs = evaluated_by_hf(tmp_path / "hf", tasks, names)
    for name in names:
        (path,) = (tmp_path / "out").rglob(f"samples_{name}_2*.jsonl")
        ours = [json.loads(line)["filtered_resps"] for line in path.read_text().splitlines()]
        logps = [[float(np.ravel(each)[0]) for each in answers] for answers in ours]
        expected = [[float(np.ravel(each)[0]) for each in row["filtered_resps"]] for row in theirs["samples"][name]]
        assert np.allclose(logps, expected, atol=1e-4), name


TEMPLATE = (
    "{% for message in messages %}{{ bos_token }}<{{ message.role }}>{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.mark.parametrize("multiturn", [True, False])
def test_prompts_of_a_chat_template_are_the_hf_backends(
    write_checkpoint: Callable[..., Path],
    tasks: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    multiturn: bool,
) -> None:
    checkpoint = write_checkpoint(tmp_path / "checkpoints")
    names = ["choice_few", "generate"]
    words = ["--include_path", tasks, "--tasks", ",".join(names), "--output_path", "out", "--log_samples"]
    words += ["--apply_chat_template", "--system_instruction", "Be brief."]
    words += ["--fewshot_as_multiturn", str(multiturn).lower()]
    with progress("export", 1) as advance:
        export_huggingface(Checkpoint.open(checkpoint), tmp_path / "hf", advance)
    (tmp_path / "checkpoints" / "chat_template.jinja").write_text(TEMPLATE)
    (tmp_path / "checkpoints" / "tokenizer_config.json").write_bytes(
        (tmp_path / "hf" / "tokenizer_config.json").read_bytes()
    )
    (tmp_path / "hf" / "chat_template.jinja").write_text(TEMPLATE)
    model = f"checkpoint={tmp_path / 'checkpoints'},store={tmp_path / 'store'}"
    assert run(monkeypatch, "lm-eval", "--model_args", model, *words) == 0
    theirs = evaluated_by_hf(
        tmp_path / "hf",
        tasks,
        names,
        apply_chat_template=True,
        fewshot_as_multiturn=multiturn,
        system_instruction="Be brief.",
    )
    for name in names:
        (path,) = (tmp_path / "out").rglob(f"samples_{name}_2*.jsonl")
        ours = [json.loads(line) for line in path.read_text().splitlines()]
        expected = theirs["samples"][name]
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


def test_an_answer_ends_at_the_token_that_ends_answers(checkpoint: Checkpoint) -> None:
    lm = CheckpointLM.open(checkpoint)
    assert isinstance(lm, CheckpointLM)
    request = Instance("generate_until", {}, ("The cook", {"until": "\n\n", "max_gen_toks": 20}), 0)
    (text,) = lm.generate_until([request])
    end = text[len(text) // 2 :][:2]
    lm.special_tokens = {"eos_token": end}
    assert lm.generate_until([request]) == [text[: text.index(end)]]


def test_an_imported_chat_model_has_its_template_and_ends_its_answers(
    write_checkpoint: Callable[..., Path], tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with progress("export", 1) as advance:
        export_huggingface(Checkpoint.open(write_checkpoint(tmp_path / "checkpoints")), tmp_path / "hf", advance)
        (tmp_path / "hf" / "chat_template.jinja").write_text(TEMPLATE)
        import_huggingface(tmp_path / "hf", tmp_path / "plain", advance)
        request = Instance("generate_until", {}, ("The cook", {"until": [], "max_gen_toks": 20}), 0)
        plain = DecoderLM.open(Checkpoint.open(tmp_path / "plain"), tmp_path / "scores.sqlite")
        (tokens,) = generate(plain.decoder, [plain.tok_encode("The cook")], 20, vocabulary=500)
        assert plain.generate_until([request]) == [plain._decode(tokens, ())]
        end = tokens[7]
        (tmp_path / "hf" / "generation_config.json").write_text(json.dumps({"eos_token_id": [499, end]}))
        import_huggingface(tmp_path / "hf", tmp_path / "imported", advance)
    shutil.rmtree(tmp_path / "hf")
    chat = DecoderLM.open(Checkpoint.open(tmp_path / "imported"), tmp_path / "scores.sqlite")
    assert chat.generate_until([request]) == [chat._decode(tokens[: tokens.index(end)], ())]
    words = ["--include_path", tasks, "--tasks", "generate", "--output_path", "out", "--log_samples"]
    assert run(monkeypatch, "lm-eval", "--model_args", "checkpoint=imported", "--apply_chat_template", *words) == 0
    (path,) = (tmp_path / "out").rglob("samples_generate_*.jsonl")
    assert "<user>" in json.loads(path.read_text().splitlines()[0])["arguments"]["gen_args_0"]["arg_0"]


@pytest.mark.parametrize(
    ("word", "template", "message"),
    [
        ((), None, "--apply_chat_template: the checkpoint has no chat template; put chat_template.jinja or"),
        (("rag",), TEMPLATE, "--apply_chat_template: no template rag; there are default"),
        ((), "{% for %}", "chat_template.jinja: not a Jinja template: "),
    ],
)
def test_a_chat_template_that_is_not_there_is_one_line(  # noqa: PLR0917  (fixtures)
    write_checkpoint: Callable[..., Path],
    tasks: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    word: tuple[str, ...],
    template: str | None,
    message: str,
) -> None:
    write_checkpoint(tmp_path / "checkpoints")
    if template is not None:
        (tmp_path / "checkpoints" / "chat_template.jinja").write_text(template)
    model = f"checkpoint={tmp_path / 'checkpoints'},store={tmp_path / 'store'}"
    words = ["--include_path", tasks, "--tasks", "choice", "--model_args", model, "--apply_chat_template", *word]
    assert run(monkeypatch, "lm-eval", *words) in {1, 2}
    *_, last = capsys.readouterr().err.splitlines()
    assert last.startswith("mtnlg-eval: ")
    assert message in last


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "hf", "--tasks", "choice"], "--model: the model is a checkpoint: --model_args checkpoint=DIR"),
        (["--tasks", "choice"], "checkpoint=DIR is missing; there are checkpoint, layout, store, batch_tokens"),
        (["--tasks", "choice", "--model_args", "checkpoint=x,dtype=float"], "no argument dtype"),
        (["--tasks", "choice", "--model_args", "checkpoint=x,tp=2"], "tp=2: write layout=tp=2,pp=2,dp=1"),
        (["--tasks", "choice", "--model_args", "checkpoint=nowhere"], "nowhere: no such folder"),
        (["--tasks", "nonesuch", "--model_args", "checkpoint=x"], "lm-eval: Tasks not found: nonesuch"),
    ],
)
def test_a_wrong_argument_is_one_line(
    words: list[str],
    message: str,
    tasks: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(monkeypatch, "lm-eval", "--include_path", tasks, *words) in {1, 2}
    *_, last = capsys.readouterr().err.splitlines()
    assert last.startswith("mtnlg-eval: ")
    assert message in last
