"""A step of a curation, ours or a user's: it takes documents and gives documents.

A step that decides document by document defines ``open``, which returns a function of a batch:

    class FewWords(Step[FewWordsSettings]):
        version = 1

        def open(self, shard, item=None):
            def decide(batch):
                counts = pc.count_substring(batch["text"], " ").to_numpy() + 1
                return Outcome.keep(batch, counts >= self.settings.least, "few_words", counts)

            return decide

The framework (``job``) reads, counts, records dropped documents, writes, resumes and summarizes. A step with several
phases defines ``run``. A step's settings are the table [NAME] of a recipe and the options of its command.
"""

from __future__ import annotations

import json
import os
from functools import lru_cache, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, NamedTuple, get_args
from unicodedata import unidata_version

import numpy as np
import pyarrow as pa
from typing_extensions import TypeVar, get_original_bases

from .console import Failure, UsageFailure
from .extract.language import language_code
from .fingerprint import fingerprint, library_version
from .settings import Settings as Table
from .settings import is_keyed, partial_settings, setting, validate
from .transfer.urls import Location, Url

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from mtnlg_data.array_types import Bools, Float64s, Int64s

    from .document import Shard
    from .job import Done, Job
    from .planning.corpus_size import CorpusSize
    from .summary import Summary

    Decide = Callable[[pa.RecordBatch], "Outcome"]

S = TypeVar("S", bound=Table, default=Table)
K = TypeVar("K", bound=Table, default=Table)
Kind = Literal["files", "documents", "tokens"]
#: What a step does with a source: "through" rewrites its shards, "read" reads them and passes them on, "past" neither.
Role = Literal["through", "read", "past"]
KEPT = -1


class Drop(NamedTuple):
    """A function of a document returns this to drop it: the reason, and the number that decided."""

    reason: str
    score: float | None = None


class Cost(NamedTuple):
    """Estimated cost of a step on a corpus, for ``plan``."""

    core_seconds: float
    memory: int  # bytes per worker
    disk: int  # bytes of output
    scratch: int = 0  # bytes that are removed when the step is done
    seconds_alone: float = 0.0  # of one process, while the workers wait
    memory_alone: int = 0  # bytes of that process
    kept: float = 1.0  # share of the documents that is kept


class Outcome(NamedTuple):
    """The result of a step on a batch of documents."""

    documents: pa.RecordBatch  # those that are kept, with the step's changes
    decisions: Int64s  # per input row: ``KEPT``, or the index of a reason
    reasons: Sequence[str] = ()
    scores: Float64s | None = None  # per input row: the number that decided, NaN where there is none
    counts: Mapping[str, int] = {}  # of anything else, such as edits, by name; added up per shard
    samples: Sequence[Any] = ()  # JSON-able, for the report; listed per shard
    origin: Int64s | None = None  # input row of each output row, where one becomes several
    notes: Mapping[str, Float64s] = {}  # per input row: values by name, for ``Job.annotate``

    @classmethod
    def keep(
        cls,
        batch: pa.RecordBatch,
        kept: Bools,
        reason: str,
        scores: NDArray[np.generic] | None = None,
    ) -> Outcome:
        """The documents for which ``kept`` is true; all others are dropped for this reason."""
        measured = None if scores is None else scores.astype(np.float64)
        documents = batch if kept.all() else batch.filter(pa.array(kept))
        return cls(documents, np.where(kept, KEPT, 0), (reason,), measured)

    @property
    def rows(self) -> Int64s:
        """Input row of each output row."""
        return np.flatnonzero(self.decisions == KEPT) if self.origin is None else self.origin


class Where(Table):
    """Settings that differ by source or language: those of the source replace the step's, the language's both."""

    source: dict[str, dict[str, Any]] = setting({}, "Settings for the documents of a source.")
    language: dict[str, dict[str, Any]] = setting({}, "Settings for the documents of a language.")


class Step(Generic[S, K]):
    """A step with its settings and, per source of the run (best first), that source's keys."""

    Settings: ClassVar[type[Table]] = Table
    SourceKeys: ClassVar[type[Table]] = Table
    takes: ClassVar[Kind] = "documents"
    gives: ClassVar[Kind] = "documents"
    #: Number of the step's folder in a run, which also orders our own steps; None: the number of the step before.
    number: ClassVar[int | None] = None
    #: Increased when the output changes. None: a digest of the step's code is the version (``user_code``).
    version: ClassVar[int | None] = None
    #: Python distributions whose versions may change the output.
    kept: ClassVar[tuple[str, ...]] = ()
    #: Approximate bytes of text in a batch for ``open``'s function; None for a whole row group.
    batch_bytes: ClassVar[int | None] = None
    #: Settings that default to another step's settings of the same name: that step's name → their names.
    follows: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    #: Top-level keys of a recipe that are settings of this step.
    top_level: ClassVar[tuple[str, ...]] = ()
    #: Hint for the error that no source goes through the step.
    nothing: ClassVar[str] = ""
    #: Settings that may differ by source and language: True for all, if only ``open`` reads them; else the names of
    #: those that the step itself reads for each language (``by_language``).
    varies: ClassVar[Literal[True] | Sequence[str]] = True
    #: Whether dropped documents are recorded and examples shown; False for a step that does so in a way of its own.
    recorded: ClassVar[bool] = True
    #: For the step's own command: source keys of every INPUT, and options for inputs with other keys (option → keys).
    alone: ClassVar[Mapping[str, Any]] = {}
    inputs: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    settings: S

    def __init_subclass__(cls) -> None:
        """Take the classes of settings from ``Step[settings, source keys]``."""
        super().__init_subclass__()
        cls.varies = vars(cls).get("varies", cls.run is Step.run or ())
        for base in get_original_bases(cls):
            types = [type_ for type_ in get_args(base) if isinstance(type_, type)]
            if types and "Settings" not in vars(cls):
                cls.Settings = types[0]
                cls.SourceKeys = types[1] if len(types) > 1 else Table

    def __init__(
        self,
        settings: S | None = None,
        sources: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        name: str | None = None,
        only: Sequence[str] | None = None,
        except_: Sequence[str] = (),
        where: Where | None = None,
        reference: tuple[str, Path | None] | None = None,
        **values: Any,  # noqa: ANN401  (fields of the settings)
    ) -> None:
        """Take ``settings``, or their values as keywords. Raises ``UsageFailure`` for a wrong value."""
        self.name = name or self.default_name()
        self.settings = settings if settings is not None else validate(values, self.Settings, self.name)  # type: ignore[assignment]
        self.only, self.except_, self.where = only, except_, where or Where()
        self.reference = reference or (self.own_reference(), None)
        self._code: list[object] | None = None
        self.bind(sources or {})

    def bind(self, sources: Mapping[str, Mapping[str, Any]]) -> None:
        """Give the step the sources of the run, in the order of their priority, each with its keys."""
        keys = {name: self.source_defaults(name, given) | dict(given) for name, given in sources.items()}
        read: dict[str, Any] = {
            name: validate(given, self.SourceKeys, f"sources.{name}") for name, given in keys.items()
        }
        self.sources: Mapping[str, K] = read
        self.variants: dict[str, dict[str, Any]] = {"source": {}, "language": {}}
        fields = self.Settings.model_fields
        varying = [key for key in fields if is_keyed(fields[key])] if self.varies is True else self.varies
        for kind, tables in self.where:
            for name, changed in tables.items():
                place = f"{self.name}.where.{kind}.{name}"
                if fixed := {*changed} & ({*fields} - {*varying}):
                    raise UsageFailure(f"{place}.{min(fixed)}: this setting is the same for all documents")
                given = validate(changed, partial_settings(self.Settings), place).model_dump(exclude_unset=True)
                self.variants[kind][language_code(name) if kind == "language" else name] = given
                self.settings_for(name, name)

    def table(self) -> dict[str, Any]:
        """The step as a table of a recipe."""
        said: dict[str, Any] = {} if self.only is None else {"only": list(self.only)}
        said |= {"except": list(self.except_)} if self.except_ else {}
        said |= {"where": self.where.model_dump(exclude_defaults=True)} if self.where != Where() else {}
        return self.settings.model_dump(mode="json", exclude_none=True) | said

    @classmethod
    def own_reference(cls) -> str:
        """Module and name, by which a worker finds the class."""
        return f"{cls.__module__}:{cls.__qualname__}"

    @classmethod
    def default_name(cls) -> str:
        """The step's name if a recipe gives none, and the reason under which it drops documents."""
        return "".join(f"_{c.lower()}" if c.isupper() else c for c in cls.__name__).lstrip("_")

    @classmethod
    def source_defaults(cls, name: str, table: Mapping[str, Any]) -> dict[str, Any]:
        """Default keys of a source of this name, for those that its table does not give."""
        del name, table
        return {}

    @classmethod
    def localize(cls, values: Mapping[str, Any], local: Callable[[Location], Path]) -> dict[str, Any]:
        """Values of the settings, with paths of a recipe or command, which may be URLs, replaced by local files."""

        def of(value: object) -> object:
            if isinstance(value, (list, tuple)):
                return type(value)(map(of, value))
            return local(value) if isinstance(value, Path | Url) else value

        return {name: of(value) for name, value in values.items()}

    def validate(self) -> None:
        """Check settings and source keys against each other. Raises ``ValueError`` if they cannot work."""

    def check(self) -> None:
        """Before any work, open what the step will read beside documents. Raises ``Failure`` if it cannot be read."""

    def cost(self, corpus: CorpusSize) -> Cost | None:
        """The step's cost on a corpus of the sources that go through it; None if it is unknown."""
        del corpus
        return None

    def role(self, source: str) -> Role:
        """What the step does with a source."""
        del source
        return "through"

    def role_of(self, source: str) -> Role:
        """``role``, or "past" for a source that the recipe's ``only`` or ``except`` leaves out."""
        chosen = (self.only is None or source in self.only) and source not in self.except_
        return self.role(source) if chosen else "past"

    def settings_for(self, source: str, language: str | None = None) -> S:
        """The settings for documents of this source and language."""
        places = ("source", source), ("language", language_code(language or ""))
        if not (changes := [self.variants[kind][name] for kind, name in places if name in self.variants[kind]]):
            return self.settings
        values = reduce(_merge, changes, self.settings.model_dump())
        return validate(values, self.Settings, f"{self.name}.where")  # type: ignore[return-value]

    def by_language(self, source: str) -> dict[str, S]:
        """The settings for documents of a source, by language; under "" those for all other languages."""
        return {code: self.settings_for(source, code) for code in ("", *self.variants["language"])}

    def fingerprint(self, source: str) -> object:
        """What the documents of a source depend on beside their texts: settings, and the source's keys."""
        return [self.settings_for(source), self.sources.get(source)]

    def code(self) -> list[object]:
        """The versions of the step's code, of its libraries and of Unicode."""
        if self._code is None:
            from .user_code import code_digest  # noqa: PLC0415  (only for steps without a version)

            version = self.version if self.version is not None else code_digest(self.implementation())
            libraries = {name: library_version(name) for name in self.kept}
            self._code = [version, libraries | {"Unicode": unidata_version}]  # defines what a letter is
        return self._code

    def implementation(self) -> object:
        """The class, or the function, that is the step's code."""
        return type(self)

    def key(self, source: str) -> list[object]:
        """What the output for a source depends on beside the input."""
        return [self.code(), self.fingerprint(source), self.variants["language"]]

    def run_key(self) -> str:
        """Digest of what the results of the whole step depend on beside its input, alarms and roles included."""
        unkeyed = {n: repr(getattr(self.settings, n)) for n, f in self.Settings.model_fields.items() if not is_keyed(f)}
        return fingerprint([[[name, self.role_of(name), self.key(name)] for name in self.sources], unkeyed])

    def open(self, shard: Shard, item: Any = None, **shared: Any) -> Decide:  # noqa: ANN401
        """On a worker: the function that decides on a shard's batches; ``item`` and ``shared`` are ``Job.write``'s."""
        raise NotImplementedError(f"{type(self).__name__} defines neither open nor run")

    def run(self, job: Job) -> list[Done]:
        """Do the work; returns the finished shards. Details for the report go to ``job.details``."""
        return job.write()

    def apply(self, job: Job) -> Summary:
        """Run the step; returns its summary."""
        return job.summarize(self.run(job))

    def decide_by_language(self, shard: Shard, source: str, item: object, shared: Mapping[str, object]) -> Decide:
        """Like ``open``, but with the settings of each language for its documents."""
        languages = [*self.variants["language"]] if self.varies is True else []
        opened: dict[str | None, Decide] = {}
        for language in (None, *languages):
            step = self if language is None and source not in self.variants["source"] else self._copy(source, language)
            opened[language] = step.open(shard, item, **shared)
            if not callable(opened[language]):
                raise Failure(f"{self.name}: open gave {opened[language]!r:.60}; it must return a function of a batch")

        def call(decide: Decide, batch: pa.RecordBatch) -> Outcome:
            if not isinstance(outcome := decide(batch), Outcome):
                raise Failure(f"{self.name}: gave {outcome!r:.60} for a batch; it must be an Outcome")
            return outcome

        def decide(batch: pa.RecordBatch) -> Outcome:
            codes = [*map(language_code, batch["language"].to_pylist())] if languages else []
            present = [language for language in languages if language in codes]
            if not present:
                return call(opened[None], batch)
            groups = np.array([present.index(code) if code in present else -1 for code in codes])
            parts = []
            for number in np.unique(groups).tolist():
                rows = np.flatnonzero(groups == number)
                part = batch.take(pa.array(rows))
                parts.append((rows, call(opened[present[number] if number >= 0 else None], part)))
            return merge_outcomes(batch.num_rows, parts)

        return decide

    def _copy(self, source: str, language: str | None) -> Step[S, K]:
        copy: Step[S, K] = object.__new__(type(self))
        vars(copy).update(vars(self), settings=self.settings_for(source, language))
        return copy

    def by_reference(self) -> StepReference:
        """The step as plain values, from which a worker rebuilds it."""
        options = {"name": self.name, "only": self.only, "except_": self.except_}
        keys = {name: keys.model_dump(mode="json") for name, keys in self.sources.items()}
        plain = [self.settings.model_dump_json(), keys, options, self.where.model_dump(mode="json"), self.code()]
        return StepReference(*self.reference, json.dumps(plain))


class StepReference(NamedTuple):
    """A step as it is sent to workers: where its code is found, and its settings."""

    reference: str
    folder: Path | None
    plain: str

    def load(self) -> Step[Any, Any]:
        """The step, built once per worker. Raises ``UsageFailure`` if its code is missing here, or another version."""
        return _load(self)


@lru_cache(maxsize=64)
def _load(step: StepReference) -> Step[Any, Any]:
    from .user_code import open_step  # noqa: PLC0415

    settings, keys, options, where, code = json.loads(step.plain)
    cls = open_step(step.reference, step.folder)
    loaded = cls(cls.Settings.model_validate_json(settings), keys, where=Where.model_validate(where),
                 reference=(step.reference, step.folder), **options)  # fmt: skip
    if loaded.code() != code:
        machine = os.uname().nodename
        raise UsageFailure(f"{loaded.name}: {step.reference} is another version on {machine}; all need the same")
    return loaded


def _merge(values: dict[str, Any], changed: Mapping[str, Any]) -> dict[str, Any]:
    """These values with the changed ones; tables are merged key by key."""
    return values | {key: values[key] | new if isinstance(new, dict) else new for key, new in changed.items()}


def merge_outcomes(rows: int, parts: Sequence[tuple[Int64s, Outcome]]) -> Outcome:
    """Merge the outcomes of parts of a batch, each given with its rows, into one in the order of the batch."""
    reasons = list(dict.fromkeys(reason for _, outcome in parts for reason in outcome.reasons))
    decisions, scores = np.full(rows, KEPT), np.full(rows, np.nan)
    counts: dict[str, int] = {}
    notes: dict[str, Float64s] = {}
    for own, outcome in parts:
        numbers = np.array([*map(reasons.index, outcome.reasons), KEPT])
        decisions[own] = numbers[outcome.decisions]
        if outcome.scores is not None:
            scores[own] = outcome.scores
        for name, count in outcome.counts.items():
            counts[name] = counts.get(name, 0) + count
        for name, values in outcome.notes.items():
            notes.setdefault(name, np.full(rows, np.nan))[own] = values
    origin = np.concatenate([own[outcome.rows] for own, outcome in parts])
    order = np.argsort(origin, kind="stable")
    documents = pa.Table.from_batches([outcome.documents for _, outcome in parts]).take(pa.array(order))
    (batch,) = documents.combine_chunks().to_batches() or [parts[0][1].documents.slice(0, 0)]
    samples = [sample for _, outcome in parts for sample in outcome.samples]
    return Outcome(batch, decisions, reasons, scores, counts, samples, origin[order], notes)
