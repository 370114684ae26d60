"""The command ``mtnlg-parallel plan``: step time and memory of a run before a cluster is booked."""

from __future__ import annotations

from difflib import get_close_matches
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from mtnlg_model.config import ModelConfig
from mtnlg_model.console import Failure, UsageFailure, print_json, say
from mtnlg_model.families import PRESETS, preset
from mtnlg_model.settings import override, validate
from mtnlg_parallel.layout import MOST, Layout, layout_error, parse_count, parse_layout
from mtnlg_parallel.recipe_file import load_recipe
from mtnlg_parallel.schedules import DEFAULT, OURS, resolve_name
from mtnlg_parallel.text import print_text
from mtnlg_parallel.training.schedule import BatchSize, Ramp, parse_length

from .cluster import load_cluster
from .programs import load_software, with_switches
from .run import Run, folder_document_length, run_error, train_run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mtnlg_parallel.recipe import Recipe

    from .search import SearchResult

FULL_BATCH = {"mt-nlg-530b": 1920, "dense-350m": 256, "dense-1.3b": 512, "dense-6.7b": 1024}
"""Batch size (sequences per step) of the published presets (paper.md sections 2 and 6)."""

LAID_OUT = {"mt-nlg-530b": Layout(tp=8, pp=35, dp=8)}
"""Published layouts of presets, on Selene (paper.md section 3)."""

TRAINED_SEQUENCE = 8192
"""Tokens per sample at which a preset with a longer context is planned: contexts grow at the end of a training."""

SEARCHED = ("micro_batch", "recompute", "interleave", "schedule", "sequence_parallel", "zero")
"""Fields of a run that a search varies, unless an option sets them."""


def _count(text: str) -> Any:  # noqa: ANN401  (typer's own return type)
    return typer.Option(min=1, max=MOST, help=text)


def plan_command(  # noqa: PLR0917  (typer names them; one branch an answer)
    target: Annotated[
        str, typer.Argument(metavar="RECIPE|PRESET", help=f"A train.toml or its folder, or {', '.join(PRESETS)}.")
    ],
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE", help="Name or file; default the recipe's, else dgx-a100, of mt-nlg-530b selene."
        ),
    ] = None,
    nodes: Annotated[int | None, _count("Number of nodes; default what --layout needs.")] = None,
    layout: Annotated[str | None, typer.Option(metavar="tp=8,pp=35,dp=8", help="Instead of the recipe's.")] = None,
    batch: Annotated[int | None, _count("Sequences per step.")] = None,
    micro_batch: Annotated[int | None, _count("Sequences of a micro-batch.")] = None,
    recompute: Annotated[
        Literal["none", "selective", "full"] | None, typer.Option(help="Activations to recompute in backward.")
    ] = None,
    interleave: Annotated[int | None, _count("Model chunks per stage.")] = None,
    schedule: Annotated[
        str | None,
        typer.Option(metavar="NAME", help=f"{', '.join(OURS)}, an entry point, package.module:name or file.py:name."),
    ] = None,
    sequence_parallel: Annotated[
        bool | None, typer.Option(help="Slice norms and dropout over tp along the sequence.", show_default=False)
    ] = None,
    precision: Annotated[
        Literal["bf16", "fp16", "fp32", "fp8", "nvfp4"] | None,
        typer.Option(help="Number format of weights and matrix products."),
    ] = None,
    zero: Annotated[
        int | None,
        typer.Option(min=0, max=3, help="Sharded over dp: 1 optimizer state, 2 also gradients, 3 also weights (FSDP)."),
    ] = None,
    shards: Annotated[
        int | None,
        _count("With --zero 2 or 3: ranks per shard group (HSDP); default dp x cp."),
    ] = None,
    software: Annotated[
        str | None,
        typer.Option(help="Training program; default what `train` runs, or for a published run the cluster's."),
    ] = None,
    switches: Annotated[
        list[str] | None, typer.Option("--switch", metavar="NAME=on|off", help="Turn a switch of --software.")
    ] = None,
    tokens: Annotated[
        str | None, typer.Option(metavar="270B", help="Length of the run, for days and GPU-hours.")
    ] = None,
    search: Annotated[
        bool, typer.Option("--search", help="Rank every layout of --nodes, and say why --layout is not the fastest.")
    ] = False,
    top: Annotated[int | None, _count("How many --search shows; default 10.")] = None,
    scaling: Annotated[
        str | None, typer.Option(metavar="280,350,420", help="Plan the run on each of these numbers of nodes.")
    ] = None,
    html: Annotated[Path | None, typer.Option(dir_okay=False, help="Write the plan as one HTML page.")] = None,
    data: Annotated[
        Path | None, typer.Option(file_okay=False, help="Token folder: the lengths of its isolated documents.")
    ] = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set a recipe key.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")] = False,
) -> None:
    """Predict a step's time and memory, or search for the best layout.

    The paper's runs: mtnlg-parallel plan mt-nlg-530b --cluster selene --scaling 280,350,420
    """
    _refuse_dropped(search=search, scaling=scaling, html=html, tokens=tokens, top=top)
    recipe = None if target in PRESETS else _recipe(target, overrides or ())
    usual = "selene" if target in LAID_OUT else "dgx-a100"
    place = load_cluster(cluster or (recipe and recipe.cluster) or usual)
    options = {
        "batch": batch,
        "micro_batch": micro_batch,
        "recompute": recompute,
        "schedule": resolve_name(schedule) if schedule else None,
        "interleave": interleave,
        "sequence_parallel": sequence_parallel,
        "precision": precision,
        "zero": zero,
        "shards": shards,
    }
    given = {name: value for name, value in options.items() if value is not None}
    template = _run_template(target, recipe, given, overrides or (), data)
    named = parse_layout(layout) if layout else {}
    template = template._replace(layout=template.layout.model_copy(update=named), cluster=place)
    searches = search or (layout is None and recipe is None and target not in LAID_OUT)
    if template.layout.tp == 1 and not searches:
        template = template._replace(sequence_parallel=False)
    # as published in 2021
    plain = (template.schedule, template.recompute, template.sequence_parallel) == (DEFAULT, "full", False)
    published = recipe is None and target in LAID_OUT and not search and plain
    ours = template.software
    name = software or (place.software if published else ours.name)
    program = with_switches(ours if name == ours.name else load_software(name), switches)
    template = template._replace(software=program)
    if template.is_ours and template.precision == "nvfp4":
        say(f"{program.name} does not train in nvfp4: planned as its 8 bits are, at the rate of 4-bit products")
    gpus = nodes * place.node.gpus if nodes else max(template.gpus, place.node.gpus)
    length = _token_count(tokens) if tokens else recipe.train.samples * recipe.model.sequence if recipe else 0
    fixed = tuple(name for name in SEARCHED if name in given)
    if (needed := -(-gpus // place.node.gpus)) > place.nodes:
        say(f"{place.name} has {place.nodes} nodes, not {needed}; planned as if it had enough")
    run = template if "dp" in named else template.on(gpus) or template
    if search:
        found = _search(template, gpus, top or 10, fixed)
        _print_search(found, gpus, length if tokens else 0, as_json, asked=run if layout else None)
        return
    if searches:
        found = _search(template, gpus, 1, fixed)
        say(f"no --layout: took the fastest of {found.fitting} that fit {gpus} GPUs")
        run = found.best[0].run
    elif not nodes:
        run = template
    if reason := run_error(run, gpus if nodes else None):
        raise UsageFailure(f"plan: {reason}")
    if nodes and (idle := gpus - run.gpus) and not searches:
        say(f"{idle:,} of the {gpus:,} GPUs are idle")
    if scaling is not None:
        _print_scaling(run, scaling, as_json)
        return
    ramp = recipe.train.ramp if recipe and batch is None else None
    _print_one(run, length, ramp, html, as_json)


def _refuse_dropped(
    *, search: bool, scaling: str | None, html: Path | None, tokens: str | None, top: int | None
) -> None:
    """Raise ``UsageFailure`` for an option that --search or --scaling would ignore, or --top without --search."""
    if top and not search:
        raise UsageFailure("--top needs --search")
    others = {"html": html, "scaling": search and scaling, "tokens": not search and tokens}
    if (search or scaling) and (dropped := [name for name, value in others.items() if value]):
        several = "search" if search else "scaling"
        raise UsageFailure(f"--{dropped[0]} shows one plan, --{several} several; choose the layout by --layout")


def _recipe(target: str, overrides: Sequence[str]) -> Recipe:
    if not Path(target).exists():
        presets = ", ".join(get_close_matches(target, PRESETS, n=3, cutoff=0.5) or PRESETS)
        raise Failure(f"{target}: no such recipe, and no such preset; choose a folder or {presets}")
    return load_recipe(Path(target), overrides)


def _run_template(
    target: str, recipe: Recipe | None, given: dict[str, Any], overrides: Sequence[str], data: Path | None
) -> Run:
    """The recipe's or preset's run, with the fields given on the command line replaced."""
    isolated = recipe is not None and recipe.data.isolated
    if data and not isolated:
        raise UsageFailure(f'--data {data} is for a recipe with data.documents = "isolated"')
    if isolated:
        assumed = "are taken to fill their samples; --data counts their lengths"
        say(f"isolated documents {f'have their lengths in {data}' if data else assumed}")
    if recipe:
        document = folder_document_length(data, recipe.model.sequence) if data else None
        return _with_options(train_run(recipe, document), given)
    batch = given.get("batch", FULL_BATCH.get(target))
    if batch is None:
        raise UsageFailure(f"plan {target}: the preset has no published batch size; give --batch SEQUENCES")
    return _with_options(Run(_preset(target, overrides), LAID_OUT.get(target, Layout()), batch), given)


def _with_options(run: Run, given: dict[str, Any]) -> Run:
    """The run with these fields; if only one of schedule and number of chunks is given, the other is made to match."""
    options = run._replace(**given)
    if "schedule" in given and "interleave" not in given and not options.pipeline_schedule.takes(run.interleave):
        return options._replace(interleave=options.pipeline_schedule.fewest_chunks)
    return options if "schedule" in given else options.with_chunks(options.interleave)


def _preset(name: str, overrides: Sequence[str]) -> ModelConfig:
    """A preset with ``--set model.KEY=VALUE`` applied. Raises ``UsageFailure`` for keys of other tables."""
    model = preset(name)
    if model.sequence > TRAINED_SEQUENCE and not any(one.startswith("model.sequence") for one in overrides):
        say(f"sequences of {TRAINED_SEQUENCE:,} tokens; --set model.sequence={model.sequence} plans its full context")
        model = model.model_copy(update={"sequence": TRAINED_SEQUENCE})
    content = {"model": model.model_dump(mode="json")}
    for each in overrides:
        override(content, each)
    if content.keys() != {"model"}:
        raise UsageFailure(f"--set: preset {name} has only [model]; use an option of plan, or a recipe")
    return validate(content["model"], ModelConfig, f"--set {' '.join(overrides)}") if overrides else model


def _token_count(text: str) -> int:
    """Parse ``270e9``, ``270B`` or ``270B tokens`` as a number of tokens."""
    try:
        count = float(text)
    except ValueError:
        try:
            count = float(parse_length(text if text.endswith("tokens") else f"{text} tokens").amount)
        except ValueError:
            count = 0.0
    if not 1 <= count < float("inf"):
        raise UsageFailure(f"--tokens {text}: write a number of tokens, such as 270e9 or 270B")
    return int(count)


def _search(run: Run, gpus: int, count: int, fixed: Sequence[str]) -> SearchResult:
    """Search for the ``count`` fastest layouts. Raises ``UsageFailure`` with the nearest if none fits."""
    from .search import search  # noqa: PLC0415  (--help does not need it)

    result = search(run, gpus, count, fixed=fixed)
    if result.best:
        return result
    if fixed and all(layout_error(rejected.run.layout, run.model) for rejected in result.rejected):
        kept = ", ".join(f"{name.replace('_', '-')} {getattr(run, name)}" for name in fixed)
        raise UsageFailure(f"no layout of {gpus:,} GPUs has {kept}")
    least = min(result.rejected, key=lambda rejected: rejected.bytes)
    more = "; use more --nodes" if isfinite(least.bytes) else ""
    raise UsageFailure(f"no layout of {gpus:,} GPUs fits; the nearest is {least.run}: {least.reason}{more}")


def _print_search(result: SearchResult, gpus: int, tokens: int, as_json: bool, *, asked: Run | None) -> None:
    """Print the fastest layouts, with days for these ``tokens``, and why others are not the fastest."""
    from .report import days_at_full_batch, plan  # noqa: PLC0415  (numpy, as above)
    from .search import reason_against  # noqa: PLC0415  (as above)

    best = [
        plan(one.run) | ({"days_at_full_batch": days_at_full_batch(one, tokens)} if tokens else {})
        for one in result.best
    ]
    rejected = [{"run": str(run), "reason": reason} for run, reason, _ in result.rejected]
    found = {"gpus": gpus, "fitting": result.fitting, "best": best, "rejected": rejected}
    compared = {"asked": asked, "second": result.best[1].run if len(result.best) > 1 else None}
    for name, run in compared.items():
        if run:
            found[name] = {"run": str(run), "reason": reason_against(run, result.best[0], gpus)}
    _show(found, as_json, "search.txt", result=result, tokens=tokens)


def _print_scaling(run: Run, scaling: str, as_json: bool) -> None:
    from .report import plan_scaling  # noqa: PLC0415  (as above)

    numbers = [number for text in scaling.split(",") if (number := parse_count(text)) is not None]
    if len(numbers) <= scaling.count(","):
        raise UsageFailure(f"--scaling {scaling}: write numbers of nodes, such as 280,350,420")
    _show(plan_scaling(run, numbers), as_json, "scaling.txt")


def _print_one(run: Run, tokens: int, ramp: Ramp | None, html: Path | None, as_json: bool) -> None:
    from .report import plan, whole_run  # noqa: PLC0415  (as above)

    planned = plan(run)
    if tokens:
        planned["run"] = whole_run(run, tokens, BatchSize(run.batch, ramp, run.layout.dp * run.micro_batch))
    if html:
        from .page import write_page  # noqa: PLC0415  (as above)

        write_page(html, planned, run)
        say(f"{html}: the plan as a page")
    _show(planned, as_json, "plan.txt", run=run)


def _show(planned: object, as_json: bool, template: str, **values: object) -> None:
    """Print plans as JSON, or as a text template shows them."""
    if as_json:
        print_json(planned)
    else:
        from .page import text_of  # noqa: PLC0415  (as above)

        print_text(text_of(template, planned=planned, **values))
