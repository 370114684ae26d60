"""The page's section on data: documents after each stage, and the blend with the epochs read of each source.

Charts and sample documents are on the curation's own page, which mtnlg-data writes.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from .attachments.tables import links
from .markup import count, decimal, duration, escape, missing_part, percent, row, short, table
from .results import count_documents
from .run_files import CURATION_PAGE, epochs_read

if TYPE_CHECKING:
    from .run_files import Run, Stage

REASONS_SHOWN = 3


def section(run: Run) -> str:
    """The table of stages, a pointer to the curation's page, and the blend."""
    if run.curation is None:
        return missing_part(
            "The data has not been curated yet", "data/summary.json", "mtnlg-data run RECIPE --out DIR/data"
        )
    documents_in, documents_out = count_documents(run.curation.stages)
    kept = (
        f"{count(documents_out)} of {count(documents_in)} documents were kept ({percent(documents_out, documents_in)})."
    )
    rows = [_stage(stage, documents_in) for stage in run.curation.stages]
    funnel = table(["after", "documents", "of all in", "characters", "dropped most", "time"], rows)
    halves = (
        f'<div class="row tables"><div>\n{funnel}\n{links("stages", "dropped")}\n</div><div>{_blend(run)}</div></div>'
    )
    return f"<p>{kept} {_curation_page(run)}</p>\n{halves}"


def _stage(stage: Stage, documents_in: int) -> str:
    reasons: Counter[str] = Counter()
    for counts in stage.sources.values():
        reasons.update(counts.dropped)
    ranked = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))[:REASONS_SHOWN]
    dropped = ", ".join(f"{escape(reason.replace('_', ' '))} {count(n)}" for reason, n in ranked)
    share = percent(stage.documents_out, documents_in)
    characters, time = short(stage.characters_out), duration(stage.seconds)
    return row([escape(stage.name), count(stage.documents_out), share, characters, dropped, time])


def _curation_page(run: Run) -> str:
    if run.has_curation_page:
        return f'Counts by source and sample documents: <a href="{CURATION_PAGE}">{CURATION_PAGE}</a>.'
    return "<code>mtnlg-data report DIR/data</code> writes a page with counts by source and sample documents."


def _blend(run: Run) -> str:
    if run.blend is None:
        return missing_part("The documents have not been tokenized yet", "data/tokens/blend.json", "mtnlg-data run")
    epochs = epochs_read(run)
    tokens = sum(source.tokens for source in run.blend.sources)
    weights = sum(source.weight for source in run.blend.sources) or 1.0
    rows = [
        row(
            [
                escape(s.name),
                count(s.documents),
                count(s.tokens),
                percent(s.tokens, tokens),
                percent(s.weight, weights),
                decimal(epochs.get(s.name), 2),
            ]
        )
        for s in run.blend.sources
    ]
    total = [count(sum(s.documents for s in run.blend.sources)), count(tokens)]
    rows.append(row(["all", *total, "", "", ""], "total"))
    head = ["source", "documents", "tokens", "of tokens", "weight", "epochs read"]
    intro = (
        f"<p>Vocabulary: {count(run.blend.vocabulary)} tokens. {percent(run.blend.validation, 1)} of the documents "
        "are held out for validation. The weight is a source's share of the training samples.</p>"
    )
    return f"<h3>The blend</h3>\n{intro}\n{table(head, rows)}\n{links('blend')}"
