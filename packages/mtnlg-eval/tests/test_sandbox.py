"""What tasks and templates of strangers may do: nothing but make a prompt, of bounded size, in bounded time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import lm_eval.utils
import pytest
from jinja2 import Environment
from jinja2.exceptions import SecurityError

from mtnlg_eval.tasks.lm_eval_tasks import load_lm_eval_tasks, with_shots
from mtnlg_eval.tasks.sandbox import PROMPTS
from mtnlg_model.chat import Chat
from mtnlg_model.console import Failure

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mtnlg_model.checkpoint.reader import Checkpoint

GROW = "{%% set own = namespace(x='x') %%}{%% for n in range(60) %%}%s{%% endfor %%}"
HOSTILE = {
    "code": "{{ cycler.__init__.__globals__.os.system('true') }}",
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "text in a loop": "{% for a in range(99999) %}" + "x" * 999 + "{% endfor %}",
    "macros": "{% macro m(n) %}{% if n %}{{ m(n-1) }}{{ m(n-1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "nodes in a loop": "{% for a in range(99999) %}" + "{% set b = 1 %}" * 999 + "{% endfor %}",
    "nodes in a macro": "{% macro m() %}" + "{% set b = 1 %}" * 999 + "{% endmacro %}" + "{{ m() }}" * 9999,
    "comparisons": "{% set x = 'x' * 10**6 %}{% for a in range(999) %}{% if 'y' in x %}{% endif %}{% endfor %}",
    "slices": "{% set x = 'x' * 10**6 %}{% for a in range(999) %}{% set y = x[1:] %}{% endfor %}",
    "product": "{{ 'x' * 10**9 }}",
    "power": "{{ 9**(9**9) }}",
    "sum": GROW % "{% set own.x = own.x + own.x %}",
    "concatenation": GROW % "{% set own.x = own.x ~ own.x %}",
    "block": GROW % "{% set y %}{{ own.x }}{{ own.x }}{% endset %}{% set own.x = y %}",
    "width": "{{ '%099999999d' % 1 }}",
    "width as a number": "{{ '%*d' % (99999999, 1) }}",
    "width of format": "{{ '{:99999999}'.format(1) }}",
    "width of a filter": "{{ 'x'|center(99999999) }}",
    "method": "{{ ('x' * 9999).replace('', 'y' * 9999) }}",
    "join": "{{ (['x' * 9999] * 9999)|join }}",
}


@pytest.mark.parametrize("template", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_template_is_refused_within_its_budget(template: str, tmp_path: Path) -> None:
    with pytest.raises(SecurityError):
        PROMPTS.from_string(template).render()
    (tmp_path / "chat_template.jinja").write_text(template)
    with pytest.raises(Failure, match=str(tmp_path / "chat_template.jinja")):
        Chat.read([tmp_path]).render([{"role": "user", "content": "Who?"}])


def test_templates_render_as_jinja() -> None:
    template = (
        "{{ t.strip() }}{% for x in l %}{{ loop.index }}{{ x ~ n }}{% endfor %}{{ '%.2f'|format(n / 3) }}{{ n * n }}"
    )
    rendered = PROMPTS.from_string(template).render(t=" of 12345678901 ", l=[2001, 2002], n=5000)
    assert rendered == "of 1234567890112001500022002" + "5000" + "1666.6725000000"
    cloze = PROMPTS.from_string("{{ t.replace(a, '____') }}")
    assert cloze.render(t="word " * 4000, a="word " * 60).count("____") == 66
    assert PROMPTS.from_string("{{ t|regex_replace('a', 'b') }}\n").render(t="a") == "b\n"


TASK = """task: own
dataset_path: json
dataset_kwargs: {{data_files: {{train: {rows}, validation: {rows}}}}}
validation_split: validation
fewshot_split: {pool}
output_type: multiple_choice
doc_to_text: {text}
doc_to_choice: ["no", "yes"]
doc_to_target: label
metric_list: [{{metric: {metric}}}]
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def written(text: str = "'{{question}}'", metric: str = "acc", pool: str = "validation") -> Path:
        rows = tmp_path / "rows.jsonl"
        rows.write_text("".join(f'{{"question": "Is {n} odd?", "label": {n % 2}}}\n' for n in range(6)))
        (tmp_path / "code.py").write_text(
            f"import os; os.mkdir({str(tmp_path / 'ran')!r})\ndef text(doc): return 'x'\n"
        )
        path = tmp_path / "own.yaml"
        path.write_text(TASK.format(rows=rows, pool=pool, text=text, metric=metric))
        return path

    return written


@pytest.mark.parametrize("parts", [{"text": "!function code.text"}, {"metric": "./code.py"}])
@pytest.mark.parametrize("by_name", [True, False])
def test_code_of_a_task_runs_only_where_it_is_trusted(
    parts: dict[str, str], by_name: bool, write: Callable[..., Path], tmp_path: Path
) -> None:
    path = write(**parts)
    name, folder = ("own", tmp_path) if by_name else (str(path), None)
    with pytest.raises(Failure, match="--trust-task-code"):
        load_lm_eval_tasks(name, folder)
    assert not (tmp_path / "ran").exists()
    if "text" in parts:
        tasks, _ = load_lm_eval_tasks(name, folder, trusted=True)
        assert tasks["own"].doc_to_text({}) == "x"
        assert (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("'{% for'", "TemplateSyntaxError: unexpected 'end of template'"),
        ("[a, b", "ParserError: line 8, column 14 of "),
        ("'{{ 1 / label }}'", "ZeroDivisionError: division by zero"),
        ("'{{ range(999999999)|list }}'", "SecurityError: a call that could make more than "),
    ],
)
def test_a_tasks_template_that_fails_is_one_line_with_its_file(  # noqa: PLR0917  (fixtures)
    text: str,
    why: str,
    write: Callable[..., Path],
    run: Callable[..., int],
    checkpoint: Checkpoint,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path, own = write(text), lm_eval.utils.env
    assert run("run", checkpoint.directory, "--tasks", path, "--out", path.with_name("out")) == 1
    lines = capsys.readouterr().err.splitlines()
    assert [str(path) in line for line in lines if why in line] == [True]
    assert lm_eval.utils.env is own
    assert type(own) is Environment  # as lm-eval's import leaves it, whatever else is imported


@pytest.mark.parametrize("pool", ["validation", "train"])
def test_a_row_is_never_among_its_own_shots(pool: str, write: Callable[..., Path]) -> None:
    task = load_lm_eval_tasks(str(write(pool=pool)))[0]["own"]
    for seed in range(5):
        made: Any = with_shots(task, 4, seed)
        made.build_all_requests(rank=0, world_size=1)
        for row, request in zip(task.eval_docs, made.instances[::2], strict=True):
            lines = [line for line in request.args[0].split("\n") if line]
            assert [row["question"] in line for line in lines] == [False] * 4 + [True]
            assert len(set(lines)) == 5
