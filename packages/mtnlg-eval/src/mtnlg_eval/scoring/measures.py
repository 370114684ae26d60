"""Values from lm-eval's records of rows: the right choice, the choices' scores, metrics with standard errors."""

from __future__ import annotations

from math import exp
from statistics import fmean
from typing import TYPE_CHECKING, Any

from mtnlg_eval.results.result import Metric
from mtnlg_eval.results.statistics import bits_per_byte, clustered_error, jackknife_error
from mtnlg_eval.tasks.paper_task import PaperTask
from mtnlg_model.console import Failure

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lm_eval.api.task import Task


def reason_of(error: Exception) -> str:
    """An error in a few words."""
    if isinstance(error, Failure):
        return str(error)
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"


def gold_of(task: Task, doc: Mapping[str, Any]) -> int | None:
    """Number of the right choice, the first if there are several; None if there are no choices."""
    if task.OUTPUT_TYPE == "loglikelihood":
        return 0
    if task.OUTPUT_TYPE != "multiple_choice":
        return None
    gold = task.doc_to_text(doc) if task.multiple_input else task.doc_to_target(doc)
    gold, choices = gold[0] if isinstance(gold, list) else gold, task.doc_to_choice(doc)
    if isinstance(gold, str) and gold in choices:
        return int(choices.index(gold))
    return int(gold) if isinstance(gold, int) and 0 <= gold < len(choices) else None


def scores_of(task: Task, sample: Mapping[str, Any]) -> list[float]:
    """Scores by which the choices of a row are compared; [] if there are no choices."""
    if isinstance(task, PaperTask):
        return task.scores(sample["doc"], sample["filtered_resps"])
    if task.OUTPUT_TYPE not in {"multiple_choice", "loglikelihood"}:
        return []
    return [logp for logp, _ in sample["filtered_resps"]]


def metrics_of(
    task: Task,
    values: Mapping[str, Any],
    samples: Sequence[Mapping[str, Any]],
    in_order: Sequence[Mapping[str, Any]],
    clusters: Sequence[int],
) -> Iterator[tuple[str, Metric]]:
    """lm-eval's metrics with standard errors, and the right answers' log-likelihood and bits per byte.

    The standard error of perplexity, the exponential of the mean of -log P, is by the delta method; that of a metric
    that is not a mean of rows, by the jackknife.
    """
    first = samples[0]["filter"]
    for key in (key for key in values if "," in key and "_stderr" not in key):
        name, _, filter_ = key.partition(",")
        rows = in_order if filter_ == first else [sample for sample in samples if sample["filter"] == filter_]
        column, value, stderr = [sample[name] for sample in rows if name in sample], values[key], None
        if not isinstance(value, int | float):
            continue
        if len(column) == len(clusters) and all(isinstance(each, int | float) for each in column):
            stderr = clustered_error(column, clusters)
            if name == "perplexity" and stderr is not None:
                stderr *= exp(-fmean(column))
        elif len(column) == len(clusters) and name in task.aggregation():
            stderr = jackknife_error(task.aggregation()[name], column, clusters)
        yield name if filter_ == first else f"{name},{filter_}", Metric(value=value, stderr=stderr)
    golds = [(sample, sample["gold"]) for sample in in_order]
    if (
        golds
        and all(gold is not None for _, gold in golds)
        and not any(key.startswith("bits_per_byte") for key in values)
    ):
        logps = [sample["filtered_resps"][gold][0] for sample, gold in golds]
        sizes = [len(sample["arguments"][f"gen_args_{gold}"]["arg_1"].encode()) for sample, gold in golds]
        pairs = list(zip(logps, sizes, strict=True))
        yield "log_likelihood", Metric(value=fmean(logps), stderr=clustered_error(logps, clusters))
        error = jackknife_error(bits_per_byte, pairs, clusters)  # type: ignore[arg-type]  # of these pairs
        yield "bits_per_byte", Metric(value=bits_per_byte(pairs), stderr=error)
