"""The page's section on data: documents after each stage, and the blend with the epochs read of each source.

Charts and sample documents are on the curation's own page, which mtnlg-data writes.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from markupsafe import Markup

from mtnlg_eval.report.blocks import Row, Section, Table, beside, paragraph
from mtnlg_eval.report.markup import count, decimal, duration, percent, short
from mtnlg_eval.report.results import count_documents
from mtnlg_eval.report.run_files import CURATION_PAGE, epochs_read

if TYPE_CHECKING:
    from mtnlg_eval.report.run_files import Run, Stage

REASONS_SHOWN = 3


def section(run: Run) -> Section | None:
    """The table of stages, a pointer to the curation's page, and the blend."""
    if run.curation is None:
        return None
    documents_in, documents_out = count_documents(run.curation.stages)
    share = percent(documents_out, documents_in)
    kept = f"{count(documents_out)} of {count(documents_in)} documents were kept ({share})."
    if run.has_curation_page:
        link = Markup('Counts by source and sample documents: <a href="{0}">{0}</a>.').format(CURATION_PAGE)
    else:
        words = "<code>mtnlg-data report DIR/data</code> writes a page with counts by source and sample documents."
        link = Markup(words)
    head = ["after", "documents", "of all in", "characters", "dropped most", "time"]
    funnel = Table(head, [Row(_stage(stage, documents_in)) for stage in run.curation.stages])
    return Section(
        "data", "Data", [paragraph(Markup("{} {}").format(kept, link)), beside("row tables", funnel, _blend(run))]
    )


def _stage(stage: Stage, documents_in: int) -> list[str]:
    reasons: Counter[str] = Counter()
    for counts in stage.sources.values():
        reasons.update(counts.dropped)
    ranked = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))[:REASONS_SHOWN]
    dropped = ", ".join(f"{reason.replace('_', ' ')} {count(n)}" for reason, n in ranked)
    share = percent(stage.documents_out, documents_in)
    return [
        stage.name,
        count(stage.documents_out),
        share,
        short(stage.characters_out),
        dropped,
        duration(stage.seconds),
    ]


def _blend(run: Run) -> Markup:
    if run.blend is None:
        return paragraph("The documents have not been tokenized yet.", "absent")
    epochs, sources = epochs_read(run), run.blend.sources
    tokens = sum(source.tokens for source in sources)
    weights = sum(source.weight for source in sources) or 1.0
    rows = [
        Row(
            [
                s.name,
                count(s.documents),
                count(s.tokens),
                percent(s.tokens, tokens),
                percent(s.weight, weights),
                decimal(epochs.get(s.name), 2),
            ]
        )
        for s in sources
    ]
    rows.append(Row(["all", count(sum(s.documents for s in sources)), count(tokens), "", "", ""], "total"))
    intro = paragraph(
        f"Vocabulary: {count(run.blend.vocabulary)} tokens. {percent(run.blend.validation, 1)} of the documents "
        "are held out for validation. The weight is a source's share of the training samples."
    )
    head = ["source", "documents", "tokens", "of tokens", "weight", "epochs read"]
    return Markup("<div><h3>The blend</h3>\n{}\n{}</div>").format(intro, Table(head, rows))
