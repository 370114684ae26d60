"""What strangers wrote, in every field of a run's files that the page shows: no browser runs it.

The page has one script, ours, which its policy admits by its hash, and adds the data of report/samples as scripts.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

RUN = "document.title='owned'"
EVIL = (
    f'</title></style></svg></text></pre><script>{RUN}</script>"><img src=x onerror="{RUN}"><svg/onload={RUN}> '
    f"' onmouseover={RUN} autofocus onfocus={RUN} x='--><iframe srcdoc='<script>parent.{RUN}</script>'> "
    f"javascript:{RUN} \u2028 ]]><![CDATA[ &lt;script&gt;{RUN}&#60;/script&#62; $title ${{style}} {{0}} %s $x$"
)


def write_hostile_files(made: ModuleType, run: Path) -> None:
    """Put the text wherever the page takes one from a file; kept are only words that the page tells apart."""
    summary = made.load("data/summary.json")
    for stage in summary["stages"]:
        stage |= {"name": EVIL, "errors": [EVIL]}
        stage["sources"] = {EVIL: {"documents_in": 9, "documents_out": 7, "dropped": {EVIL: 2}}}
    made.write(run / "data/summary.json", summary | {"languages": {EVIL: 1}})
    source = made.load("data/tokens/blend.json")["sources"][0]
    made.change(run / "data/tokens/blend.json", sources=[source | {"name": EVIL}])
    made.change(run / "train/summary.json", precision=EVIL, versions={EVIL: EVIL}, stream=EVIL)
    steps = [step | {"sources": {EVIL: {"loss": 4.0}}} for step in made.metrics()]
    (run / "train/metrics.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps), encoding="utf-8")
    change = f"[[train.change]]\nat = 20\n{json.dumps(EVIL)} = {json.dumps(EVIL)}\n"
    (run / "train/recipe.toml").write_text(f"[model]\nsequence = 32\n[train]\n{change}", encoding="utf-8")
    made.write(run / "eval/not_run/wic.json", {"task": EVIL, "why": EVIL, "checkpoint": EVIL})
    for path in (run / "eval/results").iterdir():
        plain = path.name.startswith("wic_0")  # its name stays one that has answers
        result = json.loads(path.read_text(encoding="utf-8"))
        result["rows"] |= {"source": EVIL, "split": EVIL, "digest": EVIL, "variant": EVIL}
        result["shots"] |= {"pool": EVIL} | ({} if plain else {"source": EVIL, "labels": EVIL})
        result["model"] |= {"checkpoint": EVIL}
        result["provenance"] |= {"command": EVIL, "hardware": EVIL, "date": EVIL, "packages": {EVIL: EVIL}}
        made.write(path, result)
        if plain:
            lines = made.samples(made.Result.model_validate(result), EVIL)
            samples = run / "eval/samples" / f"{path.stem}.jsonl"
            samples.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    hans, operators, bias = made.load("studies.json", made.HERE).values()
    tallied = hans["shots"]["2"]
    hans["shots"] = {EVIL: tallied | {"labels": {EVIL: {EVIL: tallied["whole"]}}}}
    operators["cells"] = [cell | {"operator": EVIL, "disguise": EVIL} for cell in operators["cells"]]
    bias["adjectives"]["gender"]["groups"]["male"]["alone"] = [[2, EVIL]]
    for name, study in (("hans", hans), ("operators", operators), ("bias", bias)):
        made.write(run / f"eval/{name}.json", study)


def test_no_text_of_a_run_becomes_markup(made: ModuleType, tmp_path: Path) -> None:
    run = made.make_run(tmp_path / f"<img src=x onerror={RUN}>", "wic")
    write_hostile_files(made, run)
    page = made.read(run)
    scripts = [attributes for tag, attributes in page.elements if tag == "script"]
    assert scripts == [{"type": "application/json", "id": "answers-index"}, {}], "the page's own, and data"
    assert not {"img", "iframe", "object", "embed"} & {tag for tag, _ in page.elements}
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
    links = {str(value) for _, a in page.elements for key, value in a.items() if key in {"href", "src", "xlink:href"}}
    assert all(link.startswith("#") or link == "data/report.html" or (run / link).is_file() for link in links)
    (data,) = (run / "report/samples").iterdir()
    assert re.fullmatch(r'mtnlgAnswers\("[\w.-]+", "[A-Za-z0-9+/=]+"\);\n', data.read_text(encoding="utf-8"))
    assert page.text.count(f"<script>{RUN}</script>") > 30, "the text is in many places"
    if made.CHROMIUM is not None:
        control = tmp_path / "control.html"
        control.write_text(f"<title>x</title><img src=x onerror={RUN}>", encoding="utf-8")
        assert title_of(made.dom_in_browser(control)) == "owned"
        dom = made.dom_in_browser(run / "report.html", "#task=wic&row=3")
        assert title_of(dom) not in {"", "owned"}
        (prompt,) = re.findall(r"<pre[^>]*>(.*?)</pre>", dom, re.DOTALL)
        assert f"&lt;script&gt;{RUN}&lt;/script&gt;" in prompt
        assert prompt.endswith("Row 3.\nAnswer:")


def title_of(dom: str) -> str:
    """The title of a page."""
    return dom.partition("<title>")[2].partition("</title>")[0]
