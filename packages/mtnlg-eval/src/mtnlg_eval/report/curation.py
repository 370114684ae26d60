"""The page's part on data, in short: what each stage left, and the blend as training read it.

Pictures, samples and all that is told of single documents stand on the curation's own page, which mtnlg-data draws.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from .markup import absent, count, decimal, duration, percent, row, short, table, text
from .results import documents, epochs
from .run_files import CURATION_PAGE

if TYPE_CHECKING:
    from .run_files import Run, Stage

REASONS_SHOWN = 3


def section(run: Run) -> str:
    """The funnel as a table, where the rest is told, and the blend."""
    if run.curation is None:
        return absent("The data has not been curated yet", "data/summary.json", "mtnlg-data run RECIPE --out DIR/data")
    entered, left = documents(run.curation.stages)
    told = f"{count(left)} of {count(entered)} documents are left ({percent(left, entered)})."
    rows = [_stage(stage, entered) for stage in run.curation.stages]
    funnel = table(["after", "documents", "of all in", "characters", "dropped most", "time"], rows)
    return f"<p>{told} {_more(run)}</p>\n{funnel}\n{_blend(run)}"


def _stage(stage: Stage, entered: int) -> str:
    reasons: Counter[str] = Counter()
    for flow in stage.sources.values():
        reasons.update(flow.dropped)
    ranked = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))[:REASONS_SHOWN]
    why = ", ".join(f"{text(reason.replace('_', ' '))} {count(n)}" for reason, n in ranked)
    share = percent(stage.documents_out, entered)
    volume, time = short(stage.characters_out), duration(stage.seconds)
    return row([text(stage.name), count(stage.documents_out), share, volume, why, time])


def _more(run: Run) -> str:
    if run.has_curation_page:
        return f'Source by source, with samples to judge by eye: <a href="{CURATION_PAGE}">{CURATION_PAGE}</a>.'
    return "<code>mtnlg-data report DIR/data</code> draws the rest of it, source by source."


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
