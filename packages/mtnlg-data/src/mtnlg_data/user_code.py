"""A user's own code as a step: a function of a text, of a document or of a batch, or a ``Step`` class.

    def keep_long(text: str, least: int = 200) -> bool            of a text
    def fix(document: Document) -> str | Drop | bool | None       of a document
    def mask(batch: pa.RecordBatch) -> pa.BooleanArray            of a batch

True or None keep a document, False drops it under the step's name, ``Drop(reason, score)`` under another, a str is its
new text; anything else ends the run. Parameters with a default are settings. The version of such code is
``keep_long.version``, or else a digest of the definitions that it reaches in its own top-level package.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import sys
from functools import cache
from typing import TYPE_CHECKING, Any, get_type_hints

import numpy as np
import pyarrow as pa
from pydantic import create_model

from .console import Failure, UsageFailure
from .document import replace_columns
from .quantities import alarm_share
from .registry import Registry
from .schema import SCHEMA, Document
from .settings import Settings, setting
from .step import KEPT, Drop, Outcome, Step
from .steps import OWN_STEPS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import FunctionType, ModuleType

    from .document import Shard
    from .step import Decide

STEPS = Registry("mtnlg_data.steps", OWN_STEPS)
TEXT, DOCUMENT, BATCH = "text", "document", "batch"
KINDS = {str: TEXT, Document: DOCUMENT, pa.RecordBatch: BATCH}


def open_step(reference: str, folder: Path | None = None) -> type[Step[Any, Any]]:
    """The class of the step with this name or reference; for a function, a class made for it.

    Raises ``UsageFailure`` if it does not exist, or is neither a function nor a class of step.
    """
    step = STEPS.load(reference, folder)
    if inspect.isclass(step) and issubclass(step, Step):
        if step.open is Step.open and step.run is Step.run and step.apply is Step.apply:
            raise UsageFailure(f"{reference}: defines neither open nor run")
        return step
    if inspect.isfunction(step):
        return function_step(step, reference)
    raise UsageFailure(f"{reference}: neither a function nor a subclass of Step")


@cache
def function_step(function: FunctionType, reference: str) -> type[FunctionStep]:
    """The class of steps that call a function. Raises ``UsageFailure`` if the function's parameters do not fit."""
    hints = get_type_hints(function, function.__globals__ | {"pa": pa, "Document": Document})
    if not (parameters := [*inspect.signature(function).parameters.values()]):
        raise UsageFailure(f"{reference}: has no parameter; its first is text, document or batch")
    first, *others = parameters
    kind = KINDS.get(hints.get(first.name, None), first.name)
    if kind not in KINDS.values():
        raise UsageFailure(
            f"{reference}: its first parameter is {first.name}; call it text, document or batch, or annotate it"
        )
    if unset := [one.name for one in others if one.default is one.empty]:
        raise UsageFailure(
            f"{reference}: its parameter {unset[0]} has no default; give it one, so that it is a setting"
        )
    fields: dict[str, Any] = {
        one.name: (hints.get(one.name, type(one.default)), setting(one.default, f"Parameter of {function.__name__}."))
        for one in others
    }
    fields.setdefault("alarm_share", (float, alarm_share(0.5)))
    schema = create_model(f"{function.__name__}_settings", __base__=Settings, **fields)
    body = {
        "Settings": schema,
        "function": staticmethod(function),
        "kind": kind,
        "parameters": tuple(one.name for one in others),
        "version": getattr(function, "version", None),
        "__doc__": inspect.getdoc(function),
    }
    return type(function.__name__, (FunctionStep,), body)


class FunctionStep(Step[Settings, Settings]):
    """Calls a function for each text, document or batch."""

    function: Callable[..., Any]
    kind: str
    parameters: tuple[str, ...]

    @classmethod
    def default_name(cls) -> str:
        """The name of the function."""
        return cls.__name__

    @classmethod
    def own_reference(cls) -> str:
        """Module and name of the function."""
        return f"{cls.function.__module__}:{cls.function.__qualname__}"

    def implementation(self) -> object:
        """The function."""
        return self.function

    def fingerprint(self, source: str) -> object:
        """The settings, and the name under which documents are dropped."""
        return [self.name, super().fingerprint(source)]

    def open(self, shard: Shard, item: Any = None, **shared: Any) -> Decide:  # noqa: ANN401
        """Decide on each batch by calling the function."""
        del shard, item, shared
        values = {name: getattr(self.settings, name) for name in self.parameters}
        return lambda batch: self._of_batch(batch, values) if self.kind == BATCH else self._of_rows(batch, values)

    def _of_batch(self, batch: pa.RecordBatch, values: dict[str, Any]) -> Outcome:
        result = self._call(batch, values, f"a batch that begins with {batch['key'][0]}")
        if isinstance(result, Outcome):
            return result
        kept = np.asarray(result)
        if kept.dtype != np.bool_ or kept.shape != (batch.num_rows,):
            raise Failure(f"{self.name}: returned {type(result).__name__} for a batch; must be a Boolean per document")
        return Outcome.keep(batch, kept, self.name)

    def _of_rows(self, batch: pa.RecordBatch, values: dict[str, Any]) -> Outcome:
        reasons: dict[str, int] = {self.name: 0}
        decisions, scores = np.full(batch.num_rows, KEPT), np.full(batch.num_rows, np.nan)
        changed: dict[int, str] = {}
        rows = batch["text"].to_pylist() if self.kind == TEXT else batch.select(SCHEMA.names).to_pylist()
        for row, content in enumerate(rows):
            argument = content if self.kind == TEXT else Document(**content)
            result = self._call(argument, values, str(batch["key"][row]))
            if isinstance(result, str):
                changed[row] = result
            elif isinstance(result, Drop):
                decisions[row] = reasons.setdefault(result.reason, len(reasons))
                scores[row] = np.nan if result.score is None else result.score
            elif isinstance(result, (bool, np.bool_)):
                decisions[row] = KEPT if result else 0
            elif result is not None:
                raise Failure(
                    f"{self.name}: gave {result!r:.60} for {batch['key'][row]}; it must be a str, a bool, None "
                    "or a Drop"
                )
        documents = batch
        if changed:
            texts = batch["text"].to_pylist()
            for row, text in changed.items():
                texts[row] = text
            documents = replace_columns(batch, {"text": texts})
        return Outcome(documents.filter(pa.array(decisions == KEPT)), decisions, list(reasons), scores)

    def _call(self, argument: object, values: dict[str, Any], key: str) -> Any:  # noqa: ANN401
        try:
            result = type(self).function(argument, **values)
            if isinstance(result, str):
                result.encode()  # as shards hold it
        except (Exception, SystemExit) as error:  # a user's function may raise anything
            raise Failure(f"{self.name}: {type(error).__name__} for {key}: {error}") from error
        return result


def code_digest(definition: object) -> str:
    """Digest of a function or class and of all definitions that it reaches in its own top-level package or file.

    Raises ``UsageFailure`` if its source cannot be read.
    """
    module = sys.modules[definition.__module__]
    reached: dict[tuple[str, str], str] = {}
    waiting = [(module, str(getattr(definition, "__qualname__", "")).partition(".")[0])]
    package = module.__name__.partition(".")[0]
    while waiting:
        module, name = waiting.pop()
        place = module.__name__.replace("__mp_main__", "__main__")  # a worker's name for its parent's script
        if (place, name) in reached:
            continue
        statements = [node for node in _statements(module) if name in _defined_names(node)]
        reached[place, name] = "\n".join(_without_docstrings(node) for node in statements)
        used = {inner.id for node in statements for inner in ast.walk(node) if isinstance(inner, ast.Name)}
        for other in used:
            value = getattr(module, other, None)
            home = sys.modules.get(str(getattr(value, "__module__", None)), module)
            if inspect.ismodule(value) and value.__name__.partition(".")[0] == package:
                waiting += [(value, one) for node in _statements(value) for one in _defined_names(node)]
            elif home.__name__.partition(".")[0] == package:
                waiting.append((home, getattr(value, "__name__", other) if home is not module else other))
    return hashlib.sha256(repr(sorted(reached.items())).encode()).hexdigest()


@cache
def _statements(module: ModuleType) -> tuple[ast.stmt, ...]:
    try:
        return tuple(ast.parse(inspect.getsource(module)).body)
    except (OSError, TypeError):
        place = f"{module.__name__}: its source cannot be read, so changes would not be noticed"
        raise UsageFailure(f"{place}; put the code in a file, or give it a version, such as keep.version = 1") from None


def _defined_names(node: ast.stmt) -> set[str]:
    """The names that a statement of a module binds."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
        return {
            inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store)
        }
    return set()


def _without_docstrings(node: ast.stmt) -> str:
    return ast.dump(_DocstringRemover().visit(ast.parse(ast.unparse(node))))


class _DocstringRemover(ast.NodeTransformer):
    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        is_text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if is_text else node
