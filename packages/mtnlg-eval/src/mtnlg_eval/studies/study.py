"""What the studies share: a study is a module of this folder with a class `STUDY`, the schema of its JSON file too.

measure     answers its questions with a model that is loaded, on every rank
tables      what the console and the page show
charts      its pictures, for the page and as a file
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from mtnlg_eval.chart import write_svg
from mtnlg_eval.evaluation import model_on_ranks, silence_lm_eval
from mtnlg_eval.records import Record
from mtnlg_model.files import write_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mtnlg_eval.chart import Chart
    from mtnlg_eval.scoring.decoder_lm import DecoderLM
    from mtnlg_eval.table import Table

NAMES = ("hans", "operators", "bias")
"""The studies, in the paper's order, which is the page's."""


class Study(Record):
    """A study of one model; ``tokens`` is what it had been trained on."""

    TITLE: ClassVar[str]
    READING: ClassVar[str]
    """How to read it."""
    COLUMNS: ClassVar[int] = 1
    """Pictures beside one another in its file."""

    version: int
    checkpoint: str
    name: str
    digest: str
    tokens: int

    @classmethod
    def measure(cls, lm: DecoderLM, identity: Mapping[str, Any], out: Path | None, **settings: Any) -> Self:  # noqa: ANN401
        """The study of this model; ``out``, on the rank that writes, is the folder of the file."""
        raise NotImplementedError

    def tables(self) -> list[Table]:
        """What to read."""
        raise NotImplementedError

    def charts(self) -> list[Chart]:
        """What to look at."""
        raise NotImplementedError

    def write(self, path: Path) -> None:
        """Write the study, and its pictures beside it."""
        write_json(path, self.model_dump(exclude_unset=True))
        write_svg(path.with_suffix(".svg"), self.charts(), self.COLUMNS)


def study_class(name: str) -> type[Study]:
    """The study of this name."""
    found: type[Study] = import_module(f"{__package__}.{name}").STUDY
    return found


def run_study(
    name: str, checkpoint: str, out: Path | str, settings: Mapping[str, Any], model_args: Mapping[str, Any]
) -> Study | None:
    """Study a model and write ``out/NAME.json``; every answer goes to the model's store at once, so a run resumes.

    Returns None on a rank other than 0.
    """
    asked = dict(locals())  # what the other ranks are called with
    silence_lm_eval()
    from mtnlg_eval.scoring.open_model import ModelOptions, open_model  # noqa: PLC0415  (slow to import)

    out, options = Path(out), ModelOptions.parse(model_args)
    model = open_model(checkpoint, options)
    with model_on_ranks(model, options, out, f"{__name__}:run_study", asked) as (lm, leads):
        study = study_class(name).measure(lm, model.identity, out if leads else None, **settings)
    if leads:
        study.write(out / f"{name}.json")
    return study if leads else None
