"""The page's parts on the paper's own studies: each its pictures, its table in short, and how to read them.

What has not been studied is absent; a study of another checkpoint than the scored one is named, never shown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mtnlg_eval.table import wilson

from .markup import DASH, count, decimal, row, table, text
from .study_charts import MTNLG_RATIO, bias, by_operator, hans, operators
from .study_files import Bias, Hans, Operators

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .run_files import Run
    from .study_files import Adjectives, Cell, Found, Occupation, Share, Studies, Study

ARROW = "\N{RIGHTWARDS ARROW}"
WORDS_SHOWN = 10
MODES = {
    ("any", "drawn"): "",
    ("other_subcases", "drawn"): "examples of other subcases only",
    ("any", "interleaved"): "labels of the examples by turns",
    ("any", "negative"): "examples of non-entailment alone",
}


class Chapter(NamedTuple):
    """One kind of study on the page; ``reading`` says in a sentence how to read it."""

    anchor: str
    title: str
    schema: type[Study]
    reading: str


CHAPTERS = (
    Chapter(
        "hans",
        "HANS",
        Hans,
        "A model that goes by the words that two sentences share says True throughout, right on entailment and wrong "
        "on the rest, so that a figure counts only where both labels rise; behind the arrow, and as rings, stands "
        "what is left when True must beat its own mean, not one half.",
    ),
    Chapter(
        "operators",
        "Hidden operators",
        Operators,
        "17 # 5 = 22, 31 # 4 = 35, 11 # 2 = ?: who sees the rule in the examples solves more with more of them (the "
        "strong line is the mean of the disguises, the faint ones), and who goes by the sign does not.",
    ),
    Chapter(
        "bias",
        "Bias",
        Bias,
        "The further the occupations lie left of 0, the more the model takes their holders for men; and words that "
        "stand beside one group alone, or are less pleasant beside one than beside the others, are what it takes "
        "people for.",
    ),
)


def sections(run: Run) -> str:
    """Every study that the run's folder holds, and what was found and is not shown."""
    parts = [_chapter(chapter, run.studies) for chapter in present(run.studies)]
    return "\n".join([*parts, _left_out(run.studies)])


def present(studies: Studies) -> list[Chapter]:
    """The kinds of study that the page shows, in its order."""
    return [chapter for chapter in CHAPTERS if any(isinstance(one.study, chapter.schema) for one in studies.shown)]


def of_others(studies: Studies) -> str:
    """A line about the studies of other checkpoints, if there are any."""
    others = ", ".join(f"{one.file} ({one.study.asked}, digest {one.study.digest[:8]})" for one in studies.others)
    return f"Left out, being of another checkpoint than the one scored here: {others}." if others else ""


def _left_out(studies: Studies) -> str:
    told = [of_others(studies), *(f"Left out, being unreadable: {line}." for line in studies.broken)]
    lines = "\n".join(f'<p class="absent">{text(line)}</p>' for line in told if line)
    return f'<section id="left-out">\n<h2>Studies left out</h2>\n{lines}\n</section>' if lines else ""


def _chapter(chapter: Chapter, studies: Studies) -> str:
    found = [one for one in studies.shown if isinstance(one.study, chapter.schema)]
    bodies = "\n".join(_study(one, f"{chapter.anchor}-{n}", alone=len(found) == 1) for n, one in enumerate(found))
    return f'<section id="{chapter.anchor}">\n<h2>{chapter.title}</h2>\n<p>{chapter.reading}</p>\n{bodies}\n</section>'


def _study(found: Found, name: str, *, alone: bool) -> str:
    head = "" if alone else f"<h3>{text(found.file)}</h3>\n"
    match found.study:
        case Hans() as study:
            return head + _hans(study, name)
        case Operators() as study:
            return head + _operators(study, name)
        case Bias() as study:
            return head + _bias(study, name)
    raise TypeError(type(found.study))


def _hans(study: Hans, name: str) -> str:
    counts = list(study.shots.values())
    rows = [row(["all rows", *(_shares(at.whole) for at in counts)], "total")]
    for heuristic, labels in counts[0].labels.items():
        for label in labels:
            cells = [_shares(at.labels.get(heuristic, {}).get(label)) for at in counts]
            rows.append(row([f"{text(heuristic.replace('_', ' '))}, {text(label)}", *cells]))
    rows.append(row(["P(True) + P(False)", *(decimal(at.mass, 3) for at in counts)]))
    rows.append(row(["says True, %", *(decimal(100 * at.said_true, 0) for at in counts)]))
    mode = (study.shots_from.source, study.shots_from.labels)
    told = f" {text(MODES.get(mode, ', '.join(mode))).capitalize()}." if mode != ("any", "drawn") else ""
    *small, subcases = (f"<figure>{picture}</figure>" for picture in hans(study, name))
    drawn = f'<div class="row halves"><div>{"".join(small)}</div>{subcases}</div>'
    head = [f"right, %: plain {ARROW} shifted; examples:", *map(text, study.shots)]
    return f'<p class="quiet">{count(counts[0].whole.rows)} rows.{told}</p>\n{drawn}\n{table(head, rows)}'


def _shares(part: Share | None) -> str:
    return DASH if part is None else f"{100 * part.accuracy:.0f} {ARROW} {100 * part.shifted:.0f}"


def _operators(study: Operators, name: str) -> str:
    shots = list(dict.fromkeys(cell.shots for cell in study.cells))

    def cells(of: Sequence[Cell], show: Callable[[int, int], str]) -> list[str]:
        at = [[cell for cell in of if cell.shots == asked] for asked in shots]
        return [show(sum(cell.right for cell in some), sum(cell.problems for cell in some)) for some in at]

    rows = [row([text(title), *cells(some, _percent)]) for title, some in by_operator(study).items()]
    rows += [
        row(["all", *cells(study.cells, _percent)], "total"),
        row(["95 % interval", *cells(study.cells, _interval)]),
    ]
    drawn = "".join(f"<figure>{picture}</figure>" for picture in operators(study, name))
    head = ["solved, %; examples:", *map(str, shots)]
    return f'<div class="panels">{drawn}</div>\n{table(head, rows)}'


def _percent(right: int, of: int) -> str:
    return f"{100 * right / of:.1f}" if of else DASH


def _interval(right: int, of: int) -> str:
    return DASH.join(f"{100 * bound:.1f}" for bound in wilson(right, of)) if of else DASH


def _bias(study: Bias, name: str) -> str:
    tables = [_occupation(study.occupation)] if study.occupation else []
    tables += [_adjectives(kind, told) for kind, told in study.adjectives.items()]
    basis = f'<p class="quiet">{count(study.samples_a_prompt)} texts a prompt.</p>\n' if study.adjectives else ""
    drawn = zip(bias(study, name), tables, strict=True)
    told = "\n".join(f"<div><figure>{picture}</figure>\n{below}</div>" for picture, below in drawn)
    return f'{basis}<div class="row halves">{told}</div>'


def _occupation(told: Occupation) -> str:
    low, high = (f"{100 * bound:.0f}" for bound in told.male_likelier_95)
    names = list(told.by_occupation)
    ratio = f"{decimal(told.mean_log_ratio, 2)} ± {decimal(told.mean_log_ratio_stderr, 2)}"
    rows = [
        row(["male likelier, % of occupations", f"{100 * told.male_likelier:.0f} ({low}{DASH}{high})", "78"]),
        row(["mean of log P(female) \N{MINUS SIGN} log P(male)", ratio, decimal(MTNLG_RATIO, 2)]),
        row([_words("most male", names[:WORDS_SHOWN]), "", ""]),
        row([_words("most female", names[: -WORDS_SHOWN - 1 : -1]), "", ""]),
    ]
    return table([f"{count(len(names))} occupations", "this run", "MT-NLG"], rows)


def _adjectives(kind: str, told: Adjectives) -> str:
    rows = [
        row(
            [
                _words(name, [f"{word} {rank}" for rank, word in group.alone[:WORDS_SHOWN]]),
                decimal(group.sentiment.positive, 2),
                decimal(group.sentiment.negative, 2),
            ]
        )
        for name, group in told.groups.items()
    ]
    head = f"{text(kind)}: adjectives beside one group alone, and their ranks ({count(told.shared)} are beside all)"
    return table([head, "pleasant", "unpleasant"], rows)


def _words(head: str, words: Sequence[str]) -> str:
    return f'<strong>{text(head)}</strong><br><span class="quiet">{text(", ".join(words)) or DASH}</span>'
