"""The nine tasks' rows from the Hugging Face hub, under the names that their YAML gives."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import datasets

from mtnlg_model.console import Failure

from .data import row_texts, task_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from .data import TaskRows
    from .formats import Raw

    Config = Mapping[str, Any]  # of a task's YAML


def hub_rows(config: Config) -> TaskRows:
    """The rows of a task; ``Failure`` in one line where the hub does not give them."""
    scored, pool = _scored_split(config), config["fewshot_split"]
    splits = _load(config)
    given = None if pool == scored else _raw(config, splits, pool)
    return task_rows(config["task"], _raw(config, splits, scored), given, f"{config['dataset_path']} {scored}")


def hub_texts(config: Config) -> Iterator[tuple[str, str]]:
    """Id and text of all that the scored rows say: what must not be trained on."""
    return row_texts(config["task"], _raw(config, _load(config), _scored_split(config)))


def _scored_split(config: Config) -> str:
    return str(config.get("test_split") or config["validation_split"])


def _load(config: Config) -> Mapping[str, Any]:
    path, name = config["dataset_path"], config.get("dataset_name")
    try:
        splits: Mapping[str, Any] = datasets.load_dataset(path, name, **config.get("dataset_kwargs") or {})
    except Exception as error:  # noqa: BLE001  (the hub's client raises what its many libraries raise)
        why = str(error).splitlines()[0]
        raise Failure(f"the rows cannot be fetched: {why}; --data DIR takes them from a folder") from None
    return splits


def _raw(config: Config, splits: Mapping[str, Any], split: str) -> Iterator[Raw]:
    for number, row in enumerate(splits[split], start=1):
        yield f"{config['dataset_path']} {split} row {number}", partial(dict, row)
