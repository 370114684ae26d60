"""The interface of studies: a study is a module in this folder with a class `STUDY`, also the schema of its JSON file.

measure     runs the study with a loaded model, on every rank
tables      tables for the console and the page
charts      charts for the page and as a file
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from mtnlg_eval.evaluation import model_on_ranks, silence_lm_eval
from mtnlg_eval.markup import render
from mtnlg_eval.records import Record
from mtnlg_model.files import write_json, write_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mtnlg_eval.chart import Chart
    from mtnlg_eval.scoring.decoder_lm import DecoderLM
    from mtnlg_eval.table import Table

NAMES = ("hans", "operators", "bias")
"""The studies, in the order of the paper, and of the page."""


class Study(Record):
    """A study of one model; ``tokens`` is the number of tokens it was trained on."""

    TITLE: ClassVar[str]
    READING: ClassVar[str]
    """How to read the study's tables and charts."""

    version: int
    checkpoint: str
    name: str
    digest: str
    tokens: int

    @classmethod
    def measure(cls, lm: DecoderLM, out: Path | None, **settings: Any) -> Self:  # noqa: ANN401
        """Run the study on this model; ``out`` is the folder of its file on the rank that writes, None on others."""
        raise NotImplementedError

    def tables(self) -> list[Table]:
        """The study's tables."""
        raise NotImplementedError

    def charts(self) -> list[Chart]:
        """The study's charts, if it has any."""
        return []

    def write(self, path: Path) -> None:
        """Write the study as JSON, and its charts as SVG beside it."""
        write_json(path, self.model_dump(exclude_unset=True))
        if charts := self.charts():
            write_text(path.with_suffix(".svg"), render("charts.svg", charts=charts))


def study_class(name: str) -> type[Study]:
    """The class of the study of this name."""
    study: type[Study] = import_module(f"{__package__}.{name}").STUDY
    return study


def run_study(
    name: str, checkpoint: str, out: Path | str, settings: Mapping[str, Any], model_args: Mapping[str, Any]
) -> Study | None:
    """Study a model and write ``out/NAME.json``; every answer goes to the model's store at once, so a run resumes.

    Returns None on ranks other than 0.
    """
    asked = dict(locals())  # arguments of the other ranks' calls
    silence_lm_eval()
    from mtnlg_eval.scoring.open_model import ModelOptions, open_model  # noqa: PLC0415  (slow to import)

    out, options = Path(out), ModelOptions.parse(model_args)
    model = open_model(checkpoint, options)
    with model_on_ranks(model, options, out, f"{__name__}:run_study", asked) as lm:
        study = study_class(name).measure(lm, None if lm.rank else out, **settings)
    if lm.rank:
        return None
    study.write(out / f"{name}.json")
    return study
