"""The HANS study (paper.md 5.3): what a model answers by heuristic, by label and by each of the 30 subcases.

HANS asks whether a sentence entails another that shares its words. A model that goes by the words says True throughout:
right for half the rows, wrong for the other half. So accuracy alone tells little, and the study looks behind it:

    mass        P(True) + P(False): how far the model answers in the form asked for; shots raise it
    said true   the share of rows where it says True: its bias towards one label
    shifted     accuracy where True is said above the mean of P(True) / (P(True) + P(False)) over all rows, not above
                one half: what the model knows once its bias is taken off

All of it is read from the samples that ``mtnlg-eval run`` keeps, at every number of shots that was scored.
"""

from __future__ import annotations

from collections import defaultdict
from math import exp
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mtnlg_eval.tasks.rows import explain
from mtnlg_model.console import Failure
from mtnlg_model.files import write_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

T = TypeVar("T", bound=BaseModel)

TRUE, FALSE = 0, 1
"""Labels, which are the numbers of the choices as well: entailment is answered by True."""


class Verdict(NamedTuple):
    """The model's answer to one row."""

    heuristic: str
    subcase: str
    label: int
    true: float  # log P(True)
    false: float  # log P(False)

    @property
    def mass(self) -> float:
        """P(True) + P(False)."""
        return exp(self.true) + exp(self.false)

    @property
    def probability(self) -> float:
        """P(True) / (P(True) + P(False))."""
        return 1 / (1 + exp(min(self.false - self.true, 700.0)))

    def right(self, threshold: float) -> bool:
        """Whether True above the threshold, False elsewhere, is right."""
        return (self.probability > threshold) == (self.label == TRUE)


class Part(NamedTuple):
    """Some of the rows: how many, and the shares of right answers, plain and with the threshold shifted."""

    rows: int
    accuracy: float
    shifted: float


class Tally(NamedTuple):
    """What the rows say at one number of shots; ``labels`` and ``subcases`` lie by heuristic."""

    whole: Part
    mass: float
    said_true: float
    threshold: float
    labels: dict[str, dict[str, Part]]
    subcases: dict[str, dict[str, Part]]


def tally(verdicts: Sequence[Verdict]) -> Tally:
    """Count one scored set of at least one row."""
    threshold = fmean(verdict.probability for verdict in verdicts)

    def part(some: Sequence[Verdict]) -> Part:
        plain, shifted = (fmean(verdict.right(at) for verdict in some) for at in (0.5, threshold))
        return Part(len(some), plain, shifted)

    def parts(name: Callable[[Verdict], str]) -> dict[str, dict[str, Part]]:
        groups: defaultdict[str, defaultdict[str, list[Verdict]]] = defaultdict(lambda: defaultdict(list))
        for verdict in verdicts:
            groups[verdict.heuristic][name(verdict)].append(verdict)
        return {heuristic: {n: part(some) for n, some in named.items()} for heuristic, named in groups.items()}

    return Tally(
        whole=part(verdicts),
        mass=fmean(verdict.mass for verdict in verdicts),
        said_true=fmean(verdict.probability > 0.5 for verdict in verdicts),
        threshold=threshold,
        labels=parts(lambda verdict: "entailment" if verdict.label == TRUE else "non-entailment"),
        subcases=parts(lambda verdict: verdict.subcase),
    )


class _Doc(BaseModel):
    model_config = ConfigDict(strict=True)

    heuristic: str
    subcase: str
    label: int = Field(ge=TRUE, le=FALSE)


class _Sample(BaseModel):
    model_config = ConfigDict(strict=True)

    doc: _Doc
    filtered_resps: list[tuple[float, bool]] = Field(min_length=2, max_length=2)


def verdicts_of(samples: Path) -> list[Verdict]:
    """The answers that a file of samples holds; ``Failure`` names the line that holds none."""
    verdicts = []
    with samples.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                sample = _Sample.model_validate_json(line)
            except ValidationError as error:
                raise Failure(f"{samples}:{number}: {explain(error)}") from None
            (true, _), (false, _) = sample.filtered_resps
            verdicts.append(Verdict(sample.doc.heuristic, sample.doc.subcase, sample.doc.label, true, false))
    if not verdicts:
        raise Failure(f"{samples}: no samples in it")
    return verdicts


def study(folder: Path) -> dict[str, Any]:
    """The tallies of an evaluation's HANS samples by number of shots, as ``hans.json`` holds them; writes that file.

    ``folder`` is what ``mtnlg-eval run --out`` wrote. ``Failure`` where HANS was not scored there, or not to the end.
    """
    if not [*(folder / "samples").glob("hans_*.jsonl")]:
        raise Failure(
            f"{folder}: HANS was not scored here; mtnlg-eval run CHECKPOINT --tasks hans --out {folder} does it"
        )
    summary, results = _read(folder / "summary.json", _Summary), _read(folder / "results.json", _Results)
    scored = sorted(summary.tasks.get("hans", ()), key=_order)
    if not scored:
        raise Failure(f"{folder}: HANS could not be scored here; {folder / 'summary.json'} says why")
    told = {asked: _plain(tally(verdicts_of(folder / "samples" / f"hans_{asked}.jsonl"))) for asked in scored}
    about = summary.model_dump(exclude={"tasks"})
    result = {"version": 1, **about, "shots_from": results.config.shots, "shots": told}
    write_json(folder / "hans.json", result)
    return result


class _Summary(BaseModel):
    checkpoint: str
    digest: str
    tokens: int
    tasks: dict[str, dict[str, Any]]


class _Config(BaseModel):
    shots: dict[str, str]


class _Results(BaseModel):
    config: _Config


def _read(path: Path, schema: type[T]) -> T:
    try:
        return schema.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise Failure(f"{path}: not there: scoring has not come to its end; the same mtnlg-eval run goes on") from None
    except ValidationError as error:
        raise Failure(f"{path}: {explain(error)}; the same mtnlg-eval run writes it again") from None


def _order(asked: str) -> float:
    return float(asked) if asked.isdecimal() else float("inf")


def _plain(value: Any) -> Any:  # noqa: ANN401  (a tree of named tuples)
    if hasattr(value, "_asdict"):
        return {name: _plain(part) for name, part in value._asdict().items()}
    return {name: _plain(part) for name, part in value.items()} if isinstance(value, dict) else value


def lines(told: dict[str, Any]) -> Iterable[tuple[str, ...]]:
    """The study as rows of a table: part, then accuracy and shifted accuracy in percent at every number of shots."""
    counts = list(told["shots"].values())

    def cells(pick: Callable[[dict[str, Any]], dict[str, Any]]) -> tuple[str, ...]:
        return tuple(f"{100 * part['accuracy']:.0f} → {100 * part['shifted']:.0f}" for part in map(pick, counts))

    yield ("all rows", *cells(lambda at: at["whole"]))
    for heuristic, labels in counts[0]["labels"].items():
        for label in labels:
            yield (f"{heuristic}, {label}", *cells(lambda at, h=heuristic, n=label: at["labels"][h][n]))  # type: ignore[misc]
        for subcase in counts[0]["subcases"][heuristic]:
            yield (f"  {subcase}", *cells(lambda at, h=heuristic, n=subcase: at["subcases"][h][n]))  # type: ignore[misc]
    yield ("P(True) + P(False)", *(f"{at['mass']:.3f}" for at in counts))
    yield ("says True", *(f"{100 * at['said_true']:.1f}" for at in counts))
