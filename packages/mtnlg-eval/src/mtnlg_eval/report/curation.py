"""The page's part on data: the ledger of documents, quality scores, duplicates, decontamination, the blend."""

from __future__ import annotations

import re
from collections import Counter
from difflib import SequenceMatcher
from itertools import takewhile
from typing import TYPE_CHECKING

from . import pictures
from .markup import absent, figure, row, table, text
from .notation import MINUS, count, decimal, duration, percent, short
from .results import documents, epochs, sources_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .folder import Curation, Decontamination, Duplicates, Pair, Quality, Run, Stage

PAIRS_SHOWN = 2
ALIKE = 0.7
EXCERPT = 420
LEAD = 100
LANGUAGES_SHOWN = 6


def section(run: Run) -> str:
    """Everything that the curation left to tell."""
    if run.curation is None:
        return absent("The data has not been curated yet", "data/summary.json", "mtnlg-data run RECIPE --out DIR/data")
    parts = [_funnel(run.curation.stages), _languages(run.curation)]
    quality = _quality(run.curation.quality) if run.curation.quality else ""
    duplicates = _duplicates(run.curation.duplicates) if run.curation.duplicates else ""
    parts.append(f'<div class="row halves">{quality}{duplicates}</div>')
    if run.curation.duplicates:
        parts += [_pair(pair) for pair in _telling(run.curation.duplicates.samples)]
    if run.curation.decontamination:
        parts.append(_decontamination(run.curation.decontamination))
    parts += [_blend(run), _unreadable(run.curation.stages)]
    return "\n".join(part for part in parts if part)


def _funnel(stages: Sequence[Stage]) -> str:
    entered, left = documents(stages)
    sources = sources_of(stages)
    shown = [None, *sources] if len(sources) > 1 else [None]
    drawn = [
        figure(text(source or "All sources"), pictures.funnel(stages, source, number))
        for number, source in enumerate(shown)
    ]
    told = f"{count(left)} of {count(entered)} documents are left ({percent(left, entered)})."
    return (
        f"<p>{told} Strong is kept, faint is dropped.</p>\n"
        f'<div class="row funnel">\n{"".join(drawn)}\n</div>\n'
        f"<h3>Documents kept and dropped, and why</h3>\n{_ledger(stages)}"
    )


def _ledger(stages: Sequence[Stage]) -> str:
    """Stage by stage what is taken away for which reason, and what remains: columns are sources."""
    sources = sources_of(stages)
    entered = documents(stages)[0]
    rows: list[str] = []
    for number, stage in enumerate(stages):
        flows = [stage.sources.get(source) for source in sources]
        if number == 0:
            first = [count(flow.documents_in) if flow else "" for flow in flows]
            rows.append(row(["documents in", count(stage.documents_in), *first, "", "", ""], "total"))
        rows += _reasons(stage, sources)
        left = [count(flow.documents_out) if flow else "" for flow in flows]
        share = percent(stage.documents_out, entered)
        volume = f"{short(stage.characters_out)}"
        after = f"after {text(stage.name)}"
        rows.append(row([after, count(stage.documents_out), *left, share, volume, duration(stage.seconds)], "total"))
    head = ["", "all", *map(text, sources), "of all in", "characters", "time"]
    return table(head, rows)


def _reasons(stage: Stage, sources: Sequence[str]) -> Iterator[str]:
    total: Counter[str] = Counter()
    for flow in stage.sources.values():
        total.update(flow.dropped)
    columns = [stage.sources.get(source) for source in sources]
    for reason, n in sorted(total.items(), key=lambda item: (-item[1], item[0])):
        cells = [_less(flow.dropped.get(reason, 0)) if flow else "" for flow in columns]
        yield row([text(reason.replace("_", " ")), _less(n), *cells, "", "", ""], "less")
    extra = {name: f.documents_out - f.documents_in + sum(f.dropped.values()) for name, f in stage.sources.items()}
    if any(extra.values()):
        cells = [f"{extra[s]:+,}".replace("-", MINUS) if extra.get(s) else "" for s in sources]
        all_ = f"{sum(extra.values()):+,}".replace("-", MINUS)
        yield row(["pieces of documents cut apart", all_, *cells, "", "", ""], "less")


def _less(n: int) -> str:
    return f"{MINUS}{count(n)}" if n else ""


def _languages(curation: Curation) -> str:
    if not curation.languages:
        return ""
    ranked = sorted(curation.languages.items(), key=lambda item: (-item[1], item[0]))
    named = ", ".join(f"{text(name)} {count(n)}" for name, n in ranked[:LANGUAGES_SHOWN])
    others = sum(n for _, n in ranked[LANGUAGES_SHOWN:])
    return f"<p>Languages of the documents: {named}{f', others {count(others)}' if others else ''}.</p>"


def _quality(quality: Quality) -> str:
    told = ""
    if quality.accuracy is not None:
        area = f", area under the curve {quality.auc:.3f}" if quality.auc is not None else ""
        told = f"<p>On held-out documents the classifier is right in {percent(quality.accuracy, 1)}{area}.</p>"
    drawn = figure("Scores", pictures.qualities(quality), "documents in a bin") if quality.edges else ""
    return f"<div><h3>Quality</h3>\n{told}\n{drawn}</div>"


def _duplicates(duplicates: Duplicates) -> str:
    sizes = duplicates.cluster_sizes
    drawn = figure("Clusters", pictures.clusters(sizes), "by the number of their documents") if sizes else ""
    told = f"{count(duplicates.components)} clusters of near duplicates; one document of each was kept."
    return f"<div><h3>Near duplicates</h3>\n<p>{told}</p>\n{drawn}</div>"


def _telling(pairs: Sequence[Pair]) -> Sequence[Pair]:
    """The pairs to show: the file holds the beginnings of long documents, and not all of those look alike."""

    def alike(pair: Pair) -> float:
        kept, dropped = pair.text_kept.split(), pair.text_dropped.split()
        return SequenceMatcher(None, kept, dropped, autojunk=False).ratio()

    telling = [pair for pair in pairs if alike(pair) >= ALIKE]
    return (telling or pairs)[:PAIRS_SHOWN]


def _pair(pair: Pair) -> str:
    """The two texts side by side from shortly before they part, the words that differ marked."""
    shorter = min(len(pair.text_kept), len(pair.text_dropped))
    alike = takewhile(lambda both: both[0] == both[1], zip(pair.text_kept, pair.text_dropped, strict=False))
    parting = sum(1 for _ in alike)
    start = max(0, parting - LEAD) if parting < shorter else 0
    kept, dropped = (_excerpt(whole, start) for whole in (pair.text_kept, pair.text_dropped))
    bare, other = ([word.strip() for word in words] for words in (kept, dropped))
    changes = SequenceMatcher(None, bare, other, autojunk=False).get_opcodes()
    if changes and start + EXCERPT < max(len(pair.text_kept), len(pair.text_dropped)):
        changes[-1] = ("equal", *changes[-1][1:])  # where the excerpts are cut they differ by the cut alone
    left = "".join(_words(kept[a:b], tag) for tag, a, b, _, _ in changes)
    right = "".join(_words(dropped[a:b], tag) for tag, _, _, a, b in changes)
    return (
        f'<div class="pair"><div><span class="quiet">kept</span> <code>{text(pair.kept)}</code><p>{left}</p></div>'
        f'<div><span class="quiet">dropped</span> <code>{text(pair.dropped)}</code> '
        f'<span class="quiet">Jaccard {pair.jaccard:.3f}</span><p>{right}</p></div></div>'
    )


def _excerpt(whole: str, start: int) -> list[str]:
    """Words of the excerpt, each with the blanks behind it."""
    cut = whole[start : start + EXCERPT]
    if start:
        cut = f"\N{HORIZONTAL ELLIPSIS}{cut.partition(' ')[2]}"
    if start + EXCERPT < len(whole):
        cut = f"{cut.rpartition(' ')[0]}\N{HORIZONTAL ELLIPSIS}"
    return re.findall(r"\S+\s*", cut)


def _words(words: Sequence[str], tag: str) -> str:
    whole = "".join(words)
    marked = whole.rstrip()
    return text(whole) if tag == "equal" or not marked else f"<mark>{text(marked)}</mark>{whole[len(marked) :]}"


def _decontamination(found: Decontamination) -> str:
    hit = {task: n for task, n in found.cuts_by_task.items() if n}
    by_task = ", ".join(f"{text(task)} {count(n)}" for task, n in sorted(hit.items()))
    told = f"Documents cut apart around the text of a task: {count(found.documents_cut)}"
    lost = f"given up: {count(found.documents_dropped)}"
    matches = f" Matches by task: {by_task}." if by_task else ""
    return f"<h3>Decontamination</h3>\n<p>{told}; {lost}.{matches}</p>"


def _blend(run: Run) -> str:
    if run.blend is None:
        return absent("The documents have not been tokenized yet", "data/tokens/blend.json", "mtnlg-data run")
    read = epochs(run)
    whole = sum(source.tokens for source in run.blend.sources)
    weights = sum(source.weight for source in run.blend.sources) or 1.0
    rows = [
        row(
            [
                text(s.name),
                count(s.documents),
                count(s.tokens),
                percent(s.tokens, whole),
                percent(s.weight, weights),
                decimal(read.get(s.name), 2),
            ]
        )
        for s in run.blend.sources
    ]
    total = [count(sum(s.documents for s in run.blend.sources)), count(whole)]
    rows.append(row(["all", *total, "", "", ""], "total"))
    head = ["source", "documents", "tokens", "of tokens", "weight", "epochs read"]
    told = (
        f"<p>A vocabulary of {count(run.blend.vocabulary)} tokens; {percent(run.blend.validation, 1)} of the documents "
        "are held out for validation. The weight is a source's share of the training samples.</p>"
    )
    return f"<h3>The blend</h3>\n{told}\n{table(head, rows)}"


def _unreadable(stages: Sequence[Stage]) -> str:
    lost = [(stage.name, error) for stage in stages for error in stage.errors]
    if not lost:
        return ""
    cells = (f"<td><code>{text(error.where)}</code></td><td>{text(error.what)}</td>" for _, error in lost)
    heads = (f'<th scope="row">{text(name)}</th>' for name, _ in lost)
    body = "\n".join(f"<tr>{head}{cell}</tr>" for head, cell in zip(heads, cells, strict=True))
    return (
        f'<h3>Records that could not be read</h3>\n<div class="scroll"><table><tbody>\n{body}\n</tbody></table></div>'
    )
