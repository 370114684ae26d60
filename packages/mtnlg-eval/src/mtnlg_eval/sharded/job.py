"""``run --launcher slurm``: a Slurm job whose ranks run the same command; mtnlg_parallel writes the script."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from mtnlg_model.console import UsageFailure
from mtnlg_model.settings import read_toml, validate
from mtnlg_parallel.initial import read_initial
from mtnlg_parallel.launch import slurm
from mtnlg_parallel.layout import Layout, evaluation_error, parse_layout
from mtnlg_parallel.recipe import Slurm
from mtnlg_parallel.recipe_file import FILE

if TYPE_CHECKING:
    from collections.abc import Iterator

OPTIONS = ("launcher", "slurm", "sbatch", "srun", "setup", "ranks_per_node", "dry_run")
"""Parameters of the command that are for the launcher and not passed to the ranks."""


def submit(context: typer.Context) -> None:
    """Submit this command as a job of the layout's ranks, or print its script. Raises ``Failure`` without sbatch.

    The table of settings is that of a recipe; options of sbatch and srun, and setup lines, are added to it. A layout
    that does not fit a model that is here raises ``UsageFailure``.
    """
    params, table = context.params, Slurm()
    layout, recipe = params["layout"], params["slurm"]
    if recipe:  # of which the rest may need what a training has, such as its data
        path, content = read_toml(recipe, FILE)
        table = validate(content.get("slurm", {}), Slurm, f"{path}: slurm")
    job = slurm.Job(
        "mtnlg-eval run",
        params["out"],
        Layout(**parse_layout(layout)) if layout else Layout(),
        table.model_copy(update={"setup": (*table.setup, *(params["setup"] or ()))}),
        params["sbatch"] or (),
        params["srun"] or (),
        params["ranks_per_node"],
    )
    checkpoint = Path(params["checkpoint"])  # of the hub unless there is one
    if layout and checkpoint.is_dir() and (error := evaluation_error(job.layout, read_initial(checkpoint, 1).config)):
        raise UsageFailure(f"--layout {layout}: {error}")
    script = slurm.script_of_ranks(job, "mtnlg_eval.cli", ["run", *_words(context)])
    if params["dry_run"]:
        typer.echo(script, nl=False)
    else:
        slurm.submit(job, script)


def _words(context: Any) -> Iterator[str]:  # noqa: ANN401  (typer hides the class of its parameters)
    """The words of the command line, without the launcher's options."""
    for parameter in context.command.params:
        value, source = context.params.get(parameter.name), context.get_parameter_source(parameter.name)
        if source.name != "COMMANDLINE" or parameter.name in OPTIONS:
            continue
        for each in value if isinstance(value, list) else [value]:
            if parameter.param_type_name == "argument":
                yield str(each)
            else:
                yield parameter.opts[0] if each is True else f"{parameter.opts[0]}={each}"
