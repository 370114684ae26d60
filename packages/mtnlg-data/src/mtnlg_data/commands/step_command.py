"""Commands of steps: an option for each setting of the step and each source key it reads, and those of all steps.

``mtnlg-data clean`` is ``mtnlg-data step clean``; ``step`` takes a user's own as well. A command gets its options when
it is chosen, so ``mtnlg-data --help`` imports no step.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from mtnlg_data.console import Failure, UsageFailure, print_json, say
from mtnlg_data.engine import EngineName
from mtnlg_data.steps import OWN_STEPS, step_help
from mtnlg_data.transfer.publish import Place
from mtnlg_data.transfer.url_files import local_path
from mtnlg_data.transfer.urls import Location, location

if TYPE_CHECKING:
    from collections.abc import Callable

    from mtnlg_data.summary import Summary

    from .setting_options import Leaf

InputPaths = Annotated[
    list[str],
    typer.Argument(
        metavar="INPUT...",
        help="Files, folders and URLs: WARC, JSON lines (.gz, .zst, .xz, .bz2), Parquet, Arrow, a step's output; "
        "NAME=PATH.",
    ),
]


def out_option(help_text: str) -> Any:  # noqa: ANN401  (typer's)
    """The option ``--out`` for a folder or a URL."""
    return typer.Option("--out", help=help_text, parser=location, metavar="FOLDER|URL")


StepFolder = Annotated[Location, out_option("Folder, or URL, for shards, manifests, summary and report.")]
TextField = Annotated[str, typer.Option(help="Key or column of the text, in JSON lines and Parquet.")]
PileSubset = Annotated[
    str | None, typer.Option(help="Read the Pile's format, and keep documents of this pile_set_name.")
]
Workers = Annotated[
    int | None, typer.Option(min=1, max=1 << 16, metavar="N", help="Number of processes; all cores if not given.")
]
OnEngine = Annotated[EngineName, typer.Option(help="Where to run: processes of this machine, or a Ray cluster.")]
OnRay = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help="With --engine ray: your cluster; else RAY_ADDRESS, else a Ray of its own."),
]
WorkFolder = Annotated[
    Path | None, typer.Option("--work", metavar="FOLDER", help="Local folder to work and resume in if --out is a URL.")
]
AllowFailures = Annotated[
    bool, typer.Option("--allow-failures", help="Exit with 0 although files or records could not be read.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
#: Commands whose name differs from the step's: step → command.
NAMES = {"quality": "score", "deduplicate": "dedup"}
SOURCES_PANEL = "Of the inputs"


def add_step_commands(app: typer.Typer) -> None:
    """Add ``step``, and a command for each step of ours."""
    for step in OWN_STEPS:
        app.command(NAMES.get(step, step), cls=_command_class(step), help=step_help(step))(lambda: None)
    context = {"ignore_unknown_options": True, "help_option_names": []}
    app.command("step", add_help_option=False, context_settings=context)(any_step)


def any_step(
    step: Annotated[str, typer.Argument(help="A step's name, package.module:name or path/file.py:name.")],
    rest: Annotated[list[str] | None, typer.Argument(metavar="INPUT... --out DIR [OPTIONS]")] = None,
) -> None:
    """Run any step by itself, one of your own too: step filters.py:keep_long IN --out OUT --least 300."""
    if step in {"-h", "--help"}:
        typer.echo(f"Usage: mtnlg-data step NAME|package.module:name|file.py:name INPUT... --out DIR [OPTIONS]\n\n"
                   f"{inspect.getdoc(any_step)}\nOwn steps: {', '.join(OWN_STEPS)}.\n"
                   "mtnlg-data step NAME --help lists the options of a step.")  # fmt: skip
        return
    context = _command(f"mtnlg-data step {step}", step).make_context(f"mtnlg-data step {step}", [*(rest or [])])
    context.command.invoke(context)


def _command_class(step: str) -> type[TyperCommand]:
    class StepCommand(TyperCommand):
        def make_context(self, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401  (click's)
            return _command(self.name or step, step).make_context(*arguments, **options)

    return StepCommand


def _command(name: str, step: str) -> Any:  # noqa: ANN401  (click's)
    command = typer.Typer(add_completion=False, rich_markup_mode="rich")
    command.command(name)(_with_options(step))
    return typer.main.get_command(command)


def _with_options(reference: str) -> Callable[..., None]:
    """A function whose signature has all options of the step's command."""
    from mtnlg_data.user_code import open_step  # noqa: PLC0415

    from .setting_options import leaves, parse_settings  # noqa: PLC0415

    cls = open_step(reference)
    settings = {_parameter_name("setting", leaf): leaf for leaf in leaves(cls.Settings)}
    keys = {
        _parameter_name("source", leaf): leaf
        for leaf in leaves(cls.SourceKeys)
        if leaf.path[0] not in {*cls.alone, *(key for options in cls.inputs.values() for key in options)}
    }
    shared = list(inspect.signature(_run_alone, eval_str=True).parameters.values())[2:]
    if cls.takes != "files":
        shared = [parameter for parameter in shared if parameter.name != "subset"]

    def command(**values: Any) -> None:  # noqa: ANN401  (options of any type)
        options = {leaf: value for name, leaf in settings.items() if (value := values.pop(name)) is not None}
        source_keys = {leaf: value for name, leaf in keys.items() if (value := ",".join(values.pop(name) or []))}
        extra = {name: values.pop(name) or [] for name in cls.inputs}
        read = parse_settings(cls.Settings, options)
        fields = {name: getattr(read, name) for name in cls.Settings.model_fields}
        localized = cls.Settings.model_construct(**cls.localize(fields, local_path))
        origin = (reference, Path.cwd() if ".py:" in reference else None)
        step = cls(localized, reference=origin, name=cls.default_name() if ":" in reference else reference)
        _run_alone(step, source_keys, **values, extra=extra)

    parameters = [
        *(parameter for parameter in shared if parameter.name != "extra"),
        *(
            _option(name, list[str], SOURCES_PANEL, f"--{name}", metavar="INPUT", help=f"Inputs that are {name}.")
            for name in cls.inputs
        ),
    ]
    for name, leaf in keys.items():  # for all inputs, or NAME=VALUE for one of them
        metavar = leaf.metavar if leaf.is_list else f"NAME={leaf.metavar}"
        parameters.append(_option(name, list[str], SOURCES_PANEL, leaf.option, metavar=metavar, help=leaf.help))
    for name, leaf in settings.items():  # a flag, or a text that `parse_settings` reads
        kind = bool if leaf.type is bool else str
        parameters.append(_option(name, kind, "Settings", leaf.option, metavar=leaf.metavar, help=leaf.help))
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__doc__ = step_help(reference) if reference in OWN_STEPS else inspect.getdoc(cls)
    return command


def _parameter_name(kind: str, leaf: Leaf) -> str:
    return f"{kind}_{leaf.option}".replace("-", "_")


def _option(name: str, kind: Any, panel: str, option: str, **shown: Any) -> inspect.Parameter:  # noqa: ANN401
    described = typer.Option(option, show_default=False, rich_help_panel=panel, **shown)
    annotation = Annotated[kind | None, described]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _run_alone(
    step: Any,  # noqa: ANN401  (a Step; annotations are read when a command is made)
    keys: Any,  # noqa: ANN401  (texts of the options of sources, by leaf)
    inputs: InputPaths,
    *,
    out: StepFolder,
    field: TextField = "text",
    subset: PileSubset = None,
    workers: Workers = None,
    engine: OnEngine = "local",
    ray: OnRay = None,
    work: WorkFolder = None,
    allow_failures: AllowFailures = False,
    as_json: AsJson = False,
    extra: Any = None,  # noqa: ANN401
) -> None:
    """Run a step by itself; the options are those that the commands of all steps share."""
    from mtnlg_data.engine import open_engine  # noqa: PLC0415

    from . import alone  # noqa: PLC0415

    if subset is not None and field != "text":
        raise UsageFailure(f"--field {field}: --subset reads the Pile, whose texts are under the key text")
    options = {"field": field} if subset is None else {"kind": "pile", "subset": subset}
    step_inputs = {"": alone.find_inputs(inputs, raw=step.takes == "files", **options)}
    for name, paths in extra.items():
        step_inputs[name] = alone.find_inputs(paths, unnamed=f"{name}s", field=field)
    alone.bind(step, step_inputs, keys)
    place = Place.of(out, work)
    with open_engine(engine, workers, ray) as opened:
        summary = alone.run_alone(step, step_inputs, place.folder, opened)
    place.publish()
    if as_json:
        print_json(summary)
    check_failures(summary, allow=allow_failures)


def check_failures(summary: Summary, *, allow: bool) -> None:
    """Raise ``Failure`` where files or too many records could not be read; with ``allow`` say so instead."""
    for stage in summary["stages"]:
        if failure := stage.get("failure"):
            if not allow:
                raise Failure(f"{failure}; everything else is done; --allow-failures makes this a success")
            say(f"allowed: {failure}")
