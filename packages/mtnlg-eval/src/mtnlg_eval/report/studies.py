"""The page's sections on the paper's studies: charts, a short table and how to read them.

A study that has not been run has no section. A study of another checkpoint than the scored one is named, not shown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mtnlg_eval.results.paper_setting import MODES
from mtnlg_eval.studies.hans import names_in_any
from mtnlg_eval.table import wilson_interval

from .attachments.tables import links, study_tables
from .markup import DASH, count, decimal, escape, row, table
from .study_charts import MTNLG_RATIO, bias_charts, cells_by_operator, hans_charts, operator_charts
from .study_files import Bias, Hans, Operators

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .run_files import Run
    from .study_files import Adjectives, Cell, Occupation, Occupations, Studies, Study, StudyFile, SubsetScore

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


def sections(run: Run) -> str:
    """A section per kind of study, and one that names the studies not shown."""
    parts = [_chapter(chapter, run.studies) for chapter in chapters_shown(run.studies)]
    return "\n".join([*parts, _left_out(run.studies)])


def chapters_shown(studies: Studies) -> list[Chapter]:
    """The kinds of study on the page, in its order."""
    return [chapter for chapter in CHAPTERS if any(isinstance(item.study, chapter.schema) for item in studies.shown)]


def other_checkpoints_notice(studies: Studies) -> str:
    """A sentence that names the studies of other checkpoints; empty if there are none."""
    others = ", ".join(
        f"{item.file} ({item.study.checkpoint_name}, digest {item.study.digest[:8]})" for item in studies.others
    )
    return f"Left out, because they are of another checkpoint than the one scored here: {others}." if others else ""


def _left_out(studies: Studies) -> str:
    unreadable = [f"Left out, because unreadable: {error}." for error in studies.errors]
    notices = [other_checkpoints_notice(studies), *unreadable]
    lines = "\n".join(f'<p class="absent">{escape(notice)}</p>' for notice in notices if notice)
    return f'<section id="left-out">\n<h2>Studies left out</h2>\n{lines}\n</section>' if lines else ""


def _chapter(chapter: Chapter, studies: Studies) -> str:
    items = [item for item in studies.shown if isinstance(item.study, chapter.schema)]
    bodies = "\n".join(_study(item, f"{chapter.anchor}-{n}", named=len(items) > 1) for n, item in enumerate(items))
    files = links(*dict.fromkeys(name for item in items for name in study_tables(item.study)))
    return (
        f'<section id="{chapter.anchor}">\n<h2>{chapter.title}</h2>\n<p>{chapter.reading}</p>\n{bodies}\n{files}\n'
        "</section>"
    )


def _study(item: StudyFile, name: str, *, named: bool) -> str:
    head = f"<h3>{escape(item.file)}</h3>\n" if named else ""
    match item.study:
        case Hans() as study:
            return head + _hans(study, name)
        case Operators() as study:
            return head + _operators(study, name)
        case Bias() as study:
            return head + _bias(study, name)
    raise TypeError(type(item.study))


def _hans(study: Hans, name: str) -> str:
    tallies = list(study.shots.values())
    sizes = [tally.whole.rows for tally in tallies]
    rows = [row(["all rows", *(_accuracies(tally.whole) for tally in tallies)], "total")]
    rows += [row(["number of rows", *map(count, sizes)])] if len(set(sizes)) > 1 else []
    for heuristic, labels in names_in_any(tally.labels for tally in tallies).items():
        for label in labels:
            cells = [_accuracies(tally.labels.get(heuristic, {}).get(label)) for tally in tallies]
            rows.append(row([f"{escape(heuristic.replace('_', ' '))}, {escape(label)}", *cells]))
    rows.append(row(["P(True) + P(False)", *(decimal(tally.mass, 3) for tally in tallies)]))
    rows.append(row(["says True, %", *(decimal(100 * tally.said_true, 0) for tally in tallies)]))
    key = (study.shots_from.source, study.shots_from.labels)
    mode = f" {escape(MODES.get(key, ', '.join(key))).capitalize()}." if key != ("any", "drawn") else ""
    *small, subcases = (f"<figure>{chart}</figure>" for chart in hans_charts(study, name))
    head = [f"accuracy, %: plain {ARROW} shifted; examples:", *map(escape, study.shots)]
    body = f'<div class="row halves"><div>{"".join(small)}\n{table(head, rows)}</div>{subcases}</div>'
    size = "The columns are of different rows" if len(set(sizes)) > 1 else f"{count(sizes[0])} rows"
    return f'<p class="quiet">{size}.{mode}</p>\n{body}'


def _accuracies(score: SubsetScore | None) -> str:
    return DASH if score is None else f"{100 * score.accuracy:.0f} {ARROW} {100 * score.shifted:.0f}"


def _operators(study: Operators, name: str) -> str:
    shots = list(dict.fromkeys(cell.shots for cell in study.cells))

    def by_shots(cells: Sequence[Cell], to_text: Callable[[int, int], str]) -> list[str]:
        groups = [[cell for cell in cells if cell.shots == number] for number in shots]
        return [to_text(sum(cell.right for cell in group), sum(cell.problems for cell in group)) for group in groups]

    rows = [row([escape(title), *by_shots(cells, _percent)]) for title, cells in cells_by_operator(study).items()]
    rows += [
        row(["all", *by_shots(study.cells, _percent)], "total"),
        row(["95 % interval", *by_shots(study.cells, _interval)]),
    ]
    charts = "".join(f"<figure>{chart}</figure>" for chart in operator_charts(study, name))
    head = ["solved, %; examples:", *map(str, shots)]
    return f'<div class="panels">{charts}</div>\n{table(head, rows)}'


def _percent(right: int, total: int) -> str:
    return f"{100 * right / total:.1f}" if total else DASH


def _interval(right: int, total: int) -> str:
    return DASH.join(f"{100 * bound:.1f}" for bound in wilson_interval(right, total)) if total else DASH


def _bias(study: Bias, name: str) -> str:
    tables = [_occupation(study.occupation)] if study.occupation else []
    tables += [_adjectives(kind, adjectives) for kind, adjectives in study.adjectives.items()]
    samples = f'<p class="quiet">{count(study.samples_a_prompt)} texts per prompt.</p>\n' if study.adjectives else ""
    pairs = zip(bias_charts(study, name), tables, strict=True)
    body = "\n".join(f"<div><figure>{chart}</figure>\n{below}</div>" for chart, below in pairs)
    return f'{samples}<div class="row halves">{body}</div>'


def _occupation(summary: Occupation) -> str:
    names, marked = list(summary.by_occupation), summary.marked
    ratio = f"{decimal(summary.mean_log_ratio, 2)} ± {decimal(summary.mean_log_ratio_stderr, 2)}"
    rows = [
        row(["male likelier, % of occupations", _share(summary), "78"]),
        row(["mean of log P(female) \N{MINUS SIGN} log P(male)", ratio, decimal(MTNLG_RATIO, 2)]),
        row([_words("most male", names[:WORDS_SHOWN]), "", ""]),
        row([_words("most female", names[: -WORDS_SHOWN - 1 : -1]), "", ""]),
    ]
    if marked:
        rows.insert(
            2, row([f"male likelier, % of {len(marked.by_occupation)} names marked by gender", _share(marked), ""])
        )
    return table([f"{count(len(names))} occupations", "this run", "MT-NLG"], rows)


def _share(summary: Occupations) -> str:
    low, high = (f"{100 * bound:.0f}" for bound in summary.male_likelier_95)
    return f"{100 * summary.male_likelier:.0f} ({low}{DASH}{high})"


def _adjectives(kind: str, adjectives: Adjectives) -> str:
    rows = [
        row(
            [
                _words(name, [f"{word} {rank}" for rank, word in group.alone[:WORDS_SHOWN]]),
                decimal(group.sentiment.positive, 2),
                decimal(group.sentiment.negative, 2),
            ]
        )
        for name, group in adjectives.groups.items()
    ]
    shared = count(adjectives.shared)
    head = f"{escape(kind)}: adjectives of one group only, with their rank ({shared} are shared by all groups)"
    return table([head, "positive", "negative"], rows)


def _words(head: str, words: Sequence[str]) -> str:
    return f'<strong>{escape(head)}</strong><br><span class="quiet">{escape(", ".join(words)) or DASH}</span>'
