"""Commands of stages: options of their own, one for each setting of the stage, and those that all stages share.

Classes of settings import libraries, so a command gets its options when it is chosen: ``mtnlg-data --help`` waits for
none.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar

import typer
from typer.core import TyperCommand

from mtnlg_data.console import Failure, print_json, say
from mtnlg_data.engine import EngineName
from mtnlg_data.transfer.publish import Place
from mtnlg_data.transfer.url_files import local_path

from .setting_options import Leaf, leaves, parse_settings

if TYPE_CHECKING:
    from mtnlg_data.engine import Engine, Summary
    from mtnlg_data.settings import Settings

    S = TypeVar("S", bound=Settings)

Workers = Annotated[
    int | None, typer.Option(min=1, max=1 << 16, metavar="N", help="Number of processes; all cores if not given.")
]
OnEngine = Annotated[EngineName, typer.Option(help="Where to run: processes of this machine, or a Ray cluster.")]
OnRay = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help="With --engine ray: your cluster; else RAY_ADDRESS, else a Ray of its own."),
]
WorkFolder = Annotated[
    Path | None, typer.Option("--work", metavar="FOLDER", help="Where to work if --out is a URL, to resume there.")
]
AllowFailures = Annotated[
    bool, typer.Option("--allow-failures", help="Exit with 0 where files or records could not be read.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
StageRun: TypeAlias = Callable[["Engine"], "Summary"]


def stage_command(app: typer.Typer, settings: str) -> Callable[[Callable[..., StageRun]], Callable[..., StageRun]]:
    """Add a stage's command to ``app``, with an option for each field of ``settings``, ``module:class``.

    The function takes the settings first, then its own arguments and options, ``out`` among them, and returns what is
    to run on an engine.
    """

    def register(function: Callable[..., StageRun]) -> Callable[..., StageRun]:
        class StageCommand(TyperCommand):
            def make_context(self, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401  (click's)
                command = typer.Typer(add_completion=False, rich_markup_mode="rich")
                command.command(self.name)(_with_options(function, settings))
                return typer.main.get_command(command).make_context(*arguments, **options)

        def listed() -> None:
            """Stand for the command in the list of commands."""

        app.command(function.__name__, cls=StageCommand, help=inspect.getdoc(function))(listed)
        return function

    return register


def _with_options(function: Callable[..., StageRun], settings: str) -> Callable[..., None]:
    """A function whose signature has all options of the command."""
    module_name, _, name = settings.partition(":")
    module = import_module(module_name)
    schema: type[Settings] = getattr(module, name)
    by_name = {f"setting_{leaf.option}".replace("-", "_"): leaf for leaf in leaves(schema)}
    names = {**vars(module), **function.__globals__}
    own = list(inspect.signature(function, eval_str=True, globals=names).parameters.values())[1:]
    shared = list(inspect.signature(run_stage, eval_str=True).parameters.values())[2:]
    shared.append(inspect.Parameter("work", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=WorkFolder))

    def command(**values: Any) -> None:  # noqa: ANN401  (options of any type)
        given = {leaf: values.pop(parameter) for parameter, leaf in by_name.items()}
        read = parse_settings(schema, {leaf: value for leaf, value in given.items() if value is not None})
        arguments = {parameter.name: values.pop(parameter.name) for parameter in own}
        place = Place.of(arguments["out"], values.pop("work"))
        stage = function(with_local_files(read), **{**arguments, "out": place.folder})
        run_stage(stage, place, **values)

    parameters = [*own, *shared, *(_parameter(name, leaf) for name, leaf in by_name.items())]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__doc__ = inspect.getdoc(function)
    return command


def _parameter(name: str, leaf: Leaf) -> inspect.Parameter:
    """The option of a setting: a flag, or a text that `parse_settings` reads."""
    option = typer.Option(
        leaf.option, metavar=leaf.metavar, help=leaf.help, show_default=False, rich_help_panel="Settings"
    )
    kind: Any = bool if leaf.type is bool else str
    annotation: Any = Annotated[kind | None, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def with_local_files(settings: S) -> S:
    """The settings with copies of this machine in place of URLs of files."""
    changed: dict[str, Any] = {}
    for name in type(settings).model_fields:
        match getattr(settings, name):
            case Path() as path:
                changed[name] = local_path(path)
            case tuple() as several:
                changed[name] = tuple(local_path(one) if isinstance(one, Path) else one for one in several)
    return settings.model_copy(update=changed)


def run_stage(
    stage: StageRun,
    place: Place,
    *,
    workers: Workers = None,
    engine: OnEngine = "local",
    ray: OnRay = None,
    allow_failures: AllowFailures = False,
    as_json: AsJson = False,
) -> None:
    """Run a stage by itself; its options are those that the commands of all stages share."""
    from mtnlg_data.engine import open_engine  # noqa: PLC0415

    with open_engine(engine, workers, ray) as opened:
        summary = stage(opened)
    place.publish()
    if as_json:
        print_json(summary)
    check_failures(summary, allow=allow_failures)


def check_failures(summary: Summary, *, allow: bool) -> None:
    """Raise ``Failure`` where files or too many records could not be read; with ``allow`` say so instead."""
    for stage in summary["stages"]:
        if failure := stage.get("failure"):
            if not allow:
                raise Failure(f"{failure}; all else is done; --allow-failures takes this for a success")
            say(f"allowed: {failure}")
