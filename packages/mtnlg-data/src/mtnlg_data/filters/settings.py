"""Settings of the stage filter: those of each rule, and those shared by several."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import create_model

from mtnlg_data import quantities
from mtnlg_data.console import UsageFailure
from mtnlg_data.settings import Settings, setting, validate
from mtnlg_data.transfer.urls import FilePath

from .rules import choose, own_families

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from .rules import Chosen

    _RuleSettings = Settings
else:
    _RuleSettings = create_model(
        "_RuleSettings",
        __base__=Settings,
        words=(
            Literal["unicode", "whitespace"],
            setting(
                "unicode",
                "What a word is for the rules of Gopher and FineWeb: unicode, runs of letters and digits with the "
                "marks inside them (don't, 3.5), and runs of another mark; whitespace, what stands between white "
                "space.",
            ),
        ),
        **{name: made for family in own_families() for rule in family.rules for name, made in rule.fields().items()},
    )


class FilterSettings(_RuleSettings):
    """Thresholds of the rules that a source names in its key ``filters``; others have no effect."""

    own: dict[str, int | float] = setting(
        {}, "Thresholds of rules that other packages or files declare.", unit="threshold"
    )
    annotate: bool = setting(
        False,
        "Keep the values of all rules for every document in values/*.parquet; other thresholds are then applied "
        "without measuring again.",
        keyed=False,
    )
    alarm_share: float = quantities.alarm_share(
        0.8, "Warn where the rules drop a larger share of a source's documents."
    )

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...  # noqa: ANN401, D105  (the fields of the rules)


def with_rules(settings: FilterSettings, chosen: Iterable[Chosen]) -> FilterSettings:
    """These settings, extended by those of rules from other packages and files, whose thresholds are in ``own``.

    Raises ``UsageFailure`` for a value that a threshold cannot have.
    """
    others = [rule.fields() for one in chosen if one.family not in own_families() for rule in one.family.rules]
    fields: dict[str, Any] = {name: made for rule in others for name, made in rule.items()}
    if not fields:
        return settings
    schema = create_model("RuleSettings", __base__=FilterSettings, **fields)
    values = {name: value for name, value in settings.own.items() if name in fields}
    return validate({**settings.model_dump(mode="json"), **values}, schema, "filter.own")


def check_rules(settings: FilterSettings, names: Iterable[Sequence[str]]) -> None:
    """Check, before any work, the settings and lists of the rules that each source names.

    Raises ``UsageFailure`` for a threshold that no rule has or for an invalid value, ``Failure`` if rules on URLs have
    no list.
    """
    chosen = [one for of_source in names for one in choose(of_source)]
    fields = type(with_rules(settings, chosen)).model_fields
    for name in settings.own:
        if name not in fields:
            raise UsageFailure(f"filter.own.{name}: no rule that a source uses has this threshold")
    for one in chosen:
        if check := getattr(one.family.target, "check", None):
            check(settings, one.asked)


#: Fields that name files.
LIST_FIELDS = tuple(
    name for name, field in FilterSettings.model_fields.items() if field.annotation == tuple[FilePath, ...]
)


def list_paths(settings: FilterSettings) -> Iterator[Path]:
    """The files of all lists."""
    return (path for name in LIST_FIELDS for path in getattr(settings, name))
