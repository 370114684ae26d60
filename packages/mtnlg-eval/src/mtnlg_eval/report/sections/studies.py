"""The page's sections on the paper's studies: charts, a short table and how to read them, by model.

A study that has not been run has no section.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from markupsafe import Markup

from mtnlg_eval.report.blocks import Row, Section, Table, beside, figure, lines, paragraph
from mtnlg_eval.report.charts.study_charts import (
    MTNLG_RATIO,
    bias_charts,
    cells_by_operator,
    hans_charts,
    operator_charts,
)
from mtnlg_eval.report.markup import DASH, count, decimal
from mtnlg_eval.report.study_files import Bias, Hans, Operators
from mtnlg_eval.results.paper_setting import MODES
from mtnlg_eval.results.statistics import wilson_interval
from mtnlg_eval.studies.hans import names_in_any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mtnlg_eval.report.study_files import (
        Adjectives,
        Cell,
        Occupation,
        Occupations,
        Studies,
        Study,
        StudyFile,
        SubsetScore,
    )

ARROW = "\N{RIGHTWARDS ARROW}"
WORDS_SHOWN = 10


class Chapter(NamedTuple):
    """One kind of study on the page; ``reading`` explains how to read it."""

    anchor: str
    title: str
    schema: type[Study]
    reading: str


CHAPTERS = (
    Chapter(
        "hans",
        "HANS",
        Hans,
        "A model that only compares the words of the two sentences always says True: right on entailment, wrong on the "
        "rest. An increase therefore counts only if both labels improve. The figure after the arrow, and the rings, "
        "give the accuracy with the threshold on P(True) at its mean over all rows instead of one half.",
    ),
    Chapter(
        "operators",
        "Hidden operators",
        Operators,
        "17 # 5 = 22, 31 # 4 = 35, 11 # 2 = ? A model that infers the rule from the examples solves more problems with "
        "more examples; a model that goes by the sign does not. Faint lines are disguises, the strong line their mean.",
    ),
    Chapter(
        "bias",
        "Bias",
        Bias,
        "The further left of 0 the occupations lie, the more the model takes the people in them for men. Words that "
        "occur with one group only, or a sentiment that differs between groups, show what it associates with people.",
    ),
)


def sections(studies: Studies) -> list[Section]:
    """A section per kind of study, and one that names the files that cannot be read."""
    parts = [_chapter(chapter, studies) for chapter in chapters_shown(studies)]
    notices = [paragraph(f"Left out, because unreadable: {error}.", "absent") for error in studies.errors]
    return [*parts, *([Section("left-out", "Studies left out", notices)] if notices else [])]


def chapters_shown(studies: Studies) -> list[Chapter]:
    """The kinds of study on the page, in its order."""
    return [chapter for chapter in CHAPTERS if any(isinstance(item.study, chapter.schema) for item in studies.shown)]


def _chapter(chapter: Chapter, studies: Studies) -> Section:
    items = [item for item in studies.shown if isinstance(item.study, chapter.schema)]
    bodies = [block for n, item in enumerate(items) for block in _study(item, f"{chapter.anchor}-{n}")]
    return Section(chapter.anchor, chapter.title, [paragraph(chapter.reading), *bodies])


def _study(item: StudyFile, name: str) -> list[Any]:
    head = Markup("<h3>{}, {}</h3>").format(item.study.name, item.file)
    match item.study:
        case Hans() as study:
            return [head, *_hans(study, name)]
        case Operators() as study:
            return [head, *_operators(study, name)]
        case Bias() as study:
            return [head, *_bias(study, name)]
    raise TypeError(type(item.study))


def _hans(study: Hans, name: str) -> list[Any]:
    tallies = list(study.shots.values())
    sizes = [tally.whole.rows for tally in tallies]
    rows = [Row(["all rows", *(_accuracies(tally.whole) for tally in tallies)], "total")]
    rows += [Row(["number of rows", *map(count, sizes)])] if len(set(sizes)) > 1 else []
    for heuristic, labels in names_in_any(tally.labels for tally in tallies).items():
        for label in labels:
            cells = [_accuracies(tally.labels.get(heuristic, {}).get(label)) for tally in tallies]
            rows.append(Row([f"{heuristic.replace('_', ' ')}, {label}", *cells]))
    rows.append(Row(["P(True) + P(False)", *(decimal(tally.mass, 3) for tally in tallies)]))
    rows.append(Row(["says True, %", *(decimal(100 * tally.said_true, 0) for tally in tallies)]))
    key = (study.shots_from.source, study.shots_from.labels)
    mode = f" {MODES.get(key, ', '.join(key)).capitalize()}." if key != ("any", "drawn") else ""
    *small, subcases = (figure("", chart) for chart in hans_charts(study, name))
    head = [f"accuracy, %: plain (95 %) {ARROW} shifted; examples:", *study.shots]
    size = "The columns are of different rows" if len(set(sizes)) > 1 else f"{count(sizes[0])} rows"
    return [
        paragraph(f"{size}.{mode}", "quiet"),
        beside("row halves", beside("", *small, Table(head, rows, study.name)), subcases),
    ]


def _accuracies(score: SubsetScore | None) -> str:
    if score is None:
        return DASH
    interval = f"{100 * score.low:.0f}{DASH}{100 * score.high:.0f}"
    return f"{100 * score.accuracy:.0f} ({interval}) {ARROW} {100 * score.shifted:.0f}"


def _operators(study: Operators, name: str) -> list[Any]:
    shots = list(dict.fromkeys(cell.shots for cell in study.cells))

    def by_shots(cells: Sequence[Cell], to_text: Callable[[int, int], str]) -> list[str]:
        groups = [[cell for cell in cells if cell.shots == number] for number in shots]
        return [to_text(sum(cell.right for cell in group), sum(cell.problems for cell in group)) for group in groups]

    rows = [Row([title, *by_shots(cells, _percent)]) for title, cells in cells_by_operator(study).items()]
    rows += [Row(["all", *by_shots(study.cells, _percent)], "total")]
    charts = [figure("", chart) for chart in operator_charts(study, name)]
    return [beside("panels", *charts), Table(["solved, % (95 %); examples:", *map(str, shots)], rows, study.name)]


def _percent(right: int, total: int) -> str:
    if not total:
        return DASH
    low, high = (100 * bound for bound in wilson_interval(right, total))
    return f"{100 * right / total:.1f} ({low:.0f}{DASH}{high:.0f})"


def _bias(study: Bias, name: str) -> list[Any]:
    tables = [_occupation(study.occupation, study.name)] if study.occupation else []
    tables += [_adjectives(kind, adjectives, study.name) for kind, adjectives in study.adjectives.items()]
    charts = zip(bias_charts(study, name), tables, strict=True)
    samples = [paragraph(f"{count(study.samples_a_prompt)} texts per prompt.", "quiet")] if study.adjectives else []
    return [*samples, beside("row halves", *(beside("", figure("", chart), below) for chart, below in charts))]


def _occupation(summary: Occupation, model: str) -> Table:
    names, marked = list(summary.by_occupation), summary.marked
    ratio = f"{decimal(summary.mean_log_ratio, 2)} ± {decimal(summary.mean_log_ratio_stderr, 2)}"
    rows = [
        Row(["male likelier, % of occupations", _share(summary), "78"]),
        Row(["mean of log P(female) \N{MINUS SIGN} log P(male)", ratio, decimal(MTNLG_RATIO, 2)]),
        Row([_words("most male", names[:WORDS_SHOWN]), "", ""]),
        Row([_words("most female", names[: -WORDS_SHOWN - 1 : -1]), "", ""]),
    ]
    if marked:
        words = f"male likelier, % of {len(marked.by_occupation)} names marked by gender"
        rows.insert(2, Row([words, _share(marked), ""]))
    return Table([f"{count(len(names))} occupations", model, "MT-NLG"], rows)


def _share(summary: Occupations) -> str:
    low, high = (f"{100 * bound:.0f}" for bound in summary.male_likelier_95)
    return f"{100 * summary.male_likelier:.0f} ({low}{DASH}{high})"


def _adjectives(kind: str, adjectives: Adjectives, model: str) -> Table:
    rows = [
        Row(
            [
                _words(name, [f"{word} {rank}" for rank, word in group.alone[:WORDS_SHOWN]]),
                decimal(group.sentiment.positive, 2),
                decimal(group.sentiment.negative, 2),
            ]
        )
        for name, group in adjectives.groups.items()
    ]
    shared = count(adjectives.shared)
    head = f"{kind}: adjectives of one group only, with their rank ({shared} are shared by all groups)"
    return Table([head, "positive", "negative"], rows, model)


def _words(head: str, words: Sequence[str]) -> Markup:
    below = Markup('<span class="quiet">{}</span>').format(", ".join(words) or DASH)
    return lines([Markup("<strong>{}</strong>").format(head), below])
