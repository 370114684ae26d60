"""When a step's output changes, its version must: a digest of every step's output on a small corpus, per version.

``python tests/test_step_outputs.py`` adds the digests of versions that ``step_outputs.json`` does not have yet.
"""

from __future__ import annotations

import json
import sys
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from mtnlg_data import Local, curate, load_recipe
from mtnlg_data.fingerprint import fingerprint
from mtnlg_data.quality.classifier import BUCKETS, Classifier
from mtnlg_data.steps import OWN_STEPS

if TYPE_CHECKING:
    from mtnlg_data import Recipe

GOLDEN = Path(__file__).with_name("step_outputs.json")
SETTINGS = [
    "quality.alpha=0.5",
    "quality.model=model.npy",
    "sources.books.filters=['gopher_quality','c4','fineweb','pii']",
    "sources.scripts.kind='jsonl'",
    "sources.scripts.paths=['scripts.jsonl']",
    "sources.scripts.filters=['gopher_shortest_mean_word','c4_fewest_words','fineweb_short_lines']",
    "sources.scripts.rules=['unicode']",
    "sources.scripts.weight=0.1",
    "sources.crawl.weight=0.5",
    "exact.kinds=['documents','lines','substrings']",
    "exact.substring_length=20",
    "decontaminate.window=10",
]
#: Words, or characters, of a few scripts, what is between them, and what ends a sentence.
SCRIPTS = [
    ("यह बंदरगाह शहर के लोगों के लिए बनाया गया था और अब भी वैसा ही है", " ", "। "),
    ("می\u200cروم به خانه که در کنار دریا است و از آن باز می\u200cگردم", " ", ". "),
    ("这个港口是为城里的人们建造的而且现在还是这样", "", "。"),
    ("ท่าเรือนี้สร้างขึ้นเพื่อชาวเมืองและยังคงเป็นเช่นนั้น", "", " "),
    ("이 항구 는 도시 사람들을 위해 지어졌고 지금도 그대로이다", " ", ". "),
]


def texts_of_scripts() -> list[str]:
    """Eight texts of each, and one of those again but for a sentence."""
    draw = Random(0)
    made = []
    for words, space, end in SCRIPTS:
        units = words.split() if space else [*words]
        for _ in range(8):
            sentences = [space.join(draw.sample(units, len(units))) + end for _ in range(20)]
            made.append("".join(sentences))
        made.append("".join(sentences[1:]))
    return made


def outputs(folder: Path) -> dict[str, list[Any]]:
    """Version, versions of libraries, and digest of the output of every step of ours."""
    import small_corpus  # (beside this file, when pytest runs it)

    weights = (np.arange(BUCKETS, dtype=np.int64) * 2654435761 % (1 << 24) - (1 << 23)).astype(np.int32)
    Classifier(weights, 0).save(folder / "model.npy")  # a trained one would be another on another processor
    (folder / "scripts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts_of_scripts()))
    recipe = load_recipe(small_corpus.write_run(folder), SETTINGS)
    with closing(Local(1)) as engine:
        curate(recipe, folder / "out", engine)
    return {step.name: [*step.code(), _digest(recipe, folder / "out", step.name)] for step in recipe.steps}


def _digest(recipe: Recipe, out: Path, name: str) -> str:
    folder = out / recipe.folders[name]
    tables = [path for path in sorted(folder.rglob("*.parquet")) if "state" not in path.relative_to(folder).parts]
    contents: list[Any] = [[path.name, repr(pq.read_table(path).to_pylist())] for path in tables]
    if name == "tokenize":
        files = [path for path in sorted((out / "tokens").glob("*")) if path.suffix in {".bin", ".idx", ".json"}]
        contents = [
            [path.name, sha256(path.read_bytes()).hexdigest()]
            for path in files
            if not path.with_suffix("").exists() and path.name != "stage.json"
        ]
    return fingerprint(contents)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    return outputs(tmp_path_factory.mktemp("run"))


@pytest.mark.parametrize("step", OWN_STEPS)
def test_an_output_changes_with_its_version(step: str, made: dict[str, list[Any]]) -> None:
    version, libraries, digest = made[step]
    known = [entry for entry in json.loads(GOLDEN.read_text())[step] if entry[0] == version]
    assert known, f"{step} has a new version: python {Path(__file__).name} adds its digest"
    same = [entry for entry in known if entry[1] == libraries]
    if not same:
        pytest.skip(f"no digest with {libraries}")
    assert same[0][2] == digest, f"{step}: its output changed, and its version did not; raise it"


def main() -> None:
    """Add what is not there yet."""
    sys.path.insert(0, str(Path(__file__).parent))
    golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    with TemporaryDirectory() as folder:
        for step, entry in outputs(Path(folder)).items():
            entries = golden.setdefault(step, [])
            if entry[:2] not in [known[:2] for known in entries]:
                entries.append(entry)
    GOLDEN.write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()
