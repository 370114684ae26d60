"""Schemas of the nine tasks' rows, and the documents made from them.

Publishers and the hub's copies name keys and labels differently. Each model here accepts all of their forms, rejects
what cannot be scored (an unknown label, an empty option) and builds documents: flat dicts read by the prompt templates
in tasks/*.yaml. Each document has

    digest   of the content: equal for the same row from the hub and from a file
    id       the publisher's id, else the digest
    group    a digest of what one prompt must not show twice: a passage, an article, a pair of twins

Surrounding blanks are stripped. ``texts`` returns what must not be trained on (paper.md 4.4): passages, questions,
options.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
from typing import Annotated, Any, ClassVar

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    model_validator,
)

Document = dict[str, Any]
_STRIP = BeforeValidator(lambda value: value.strip() if isinstance(value, str) else value)
Stripped = Annotated[str, _STRIP]
Text = Annotated[str, StringConstraints(min_length=1), _STRIP]


def _label(*spellings: str) -> BeforeValidator:
    """Validate a label, given as text, number or boolean; each spelling has the names of label 0, 1 and so on."""
    choices = {name: label for names in spellings for label, name in enumerate(names.split())}

    def parse(value: object) -> int:
        if (name := str(value).strip().lower()) in choices:
            return choices[name]
        raise ValueError(f"unknown label; use one of {', '.join(choices)}")

    return BeforeValidator(parse)


def _matching(pattern: str, message: str) -> AfterValidator:
    """Validate that a text contains the pattern."""

    def check(text: str) -> str:
        if not re.search(pattern, text):
            raise ValueError(message)
        return text

    return AfterValidator(check)


YesNo = Annotated[int, _label("false true", "f t", "0 1")]


class Row(BaseModel):
    """One published row; keys that no prompt reads are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    GROUP: ClassVar[tuple[str, ...]] = ()
    """Keys of the content that one prompt must not show twice."""
    TEXTS: ClassVar[tuple[str, ...]] = ()
    """Keys of the texts that must not be trained on."""

    id: Annotated[str | None, BeforeValidator(lambda value: None if value is None else str(value).strip() or None)] = (
        Field(None, validation_alias=AliasChoices("id", "uid", "qID", "idx", "ind", "pairID", "example_id"))
    )

    def fields(self) -> Document:
        """The part of the document that prompts read."""
        return self.model_dump(exclude={"id"})

    def texts(self) -> list[str]:
        """Texts that must not be trained on."""
        return [getattr(self, name) for name in self.TEXTS]

    def digest(self) -> str:
        """Digest of the content."""
        return content_digest(self.fields())

    def group(self) -> str:
        """Digest of the content that one prompt must not show twice."""
        return content_digest([getattr(self, key).lower() for key in self.GROUP])

    def documents(self) -> list[Document]:
        """Documents to score: one, except RACE with one per question."""
        digest = self.digest()
        return [{"id": self.id or digest, "group": self.group(), "digest": digest, **self.fields()}]


def content_digest(value: object) -> str:
    """Digest of a document or a part of it."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Lambada(Row):
    """A passage; its last word is the target."""

    GROUP = TEXTS = ("text",)

    text: Annotated[Stripped, _matching(r"[^ ] +[^ ]", "needs words before the last one")]

    def fields(self) -> Document:
        """The passage without its last word, and that word after a space."""
        context, _, word = self.text.rpartition(" ")
        return {"text": self.text, "context": context, "target": f" {word}"}


class BoolQ(Row):
    """A passage and a yes/no question about it."""

    GROUP = ("passage",)
    TEXTS = ("passage", "question")

    passage: Text
    question: Text
    label: YesNo


class WinoGrande(Row):
    """A sentence with a blank ``_`` and two options to fill it; ``answer`` is 1 or 2."""

    sentence: Annotated[Stripped, _matching(r"^[^_]*_[^_]*[^_\s][^_]*$", "needs one blank _ with words after it")]
    option1: Text
    option2: Text
    label: Annotated[int, _label("1 2")] = Field(validation_alias=AliasChoices("answer", "label"))

    def fields(self) -> Document:
        """Partial evaluation: the sentence through each option, and the rest that both share (paper.md 5.2)."""
        before, after = self.sentence.split("_")
        return super().fields() | {"contexts": [before + self.option1, before + self.option2], "rest": after}

    def group(self) -> str:
        """Digest of what twins share: options and first two words (finds all 88 pairs among 400 published rows)."""
        options = sorted((self.option1.lower(), self.option2.lower()))
        return content_digest([*options, *self.sentence.lower().split()[:2]])

    def texts(self) -> list[str]:
        """The sentence with each option filled in."""
        return [self.sentence.replace("_", option) for option in (self.option1, self.option2)]


class HellaSwag(Row):
    """A scene and four possible endings."""

    activity_label: Text
    ctx_a: Text
    ctx_b: Stripped
    source_id: str | None = None
    endings: Annotated[list[Text], Field(min_length=4, max_length=4)]
    label: Annotated[int, _label("0 1 2 3")]

    @model_validator(mode="after")
    def _check_endings(self) -> HellaSwag:
        if not all(map(_without_marks, self.endings)):
            raise ValueError("an ending has only [..] marks")
        return self

    def fields(self) -> Document:
        """Scene and endings without WikiHow's ``[..]`` marks; the second part of the scene is capitalised."""
        scene = f"{self.activity_label}: {self.ctx_a} {self.ctx_b.capitalize()}"
        return {
            "query": _without_marks(scene),
            "choices": [_without_marks(ending) for ending in self.endings],
            "label": self.label,
        }

    def group(self) -> str:
        """Digest of the video or article: the next scene of a video reveals how this one ended."""
        return content_digest(self.source_id or [self.activity_label, self.ctx_a])

    def texts(self) -> list[str]:
        """The scene followed by each ending."""
        return [f"{_without_marks(f'{self.ctx_a} {self.ctx_b}')} {_without_marks(ending)}" for ending in self.endings]


def _without_marks(text: str) -> str:
    return re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". ")).replace("  ", " ").strip()


class PiQA(Row):
    """A goal and two solutions."""

    GROUP = ("goal",)
    TEXTS = ("goal", "sol1", "sol2")

    goal: Text
    sol1: Text
    sol2: Text
    label: Annotated[int, _label("0 1")]


class Anli(Row):
    """A premise and a hypothesis, labelled entailment (0, e), neutral (1, n) or contradiction (2, c)."""

    GROUP = ("premise",)
    TEXTS = ("premise", "hypothesis")

    premise: Text = Field(validation_alias=AliasChoices("premise", "context"))
    hypothesis: Text
    label: Annotated[int, _label("e n c", "0 1 2")]


class Hans(Row):
    """Two sentences with shared words: the first entails the second (0) or does not (1)."""

    GROUP = ("sentence1",)
    TEXTS = ("sentence1", "sentence2")

    sentence1: Text
    sentence2: Text
    label: Annotated[int, _label("entailment non-entailment")] = Field(validation_alias="gold_label")
    heuristic: Text
    subcase: Text
    template: Text


class Wic(Row):
    """A word in two sentences, with the same sense or not; ``start1:end1`` is its span in the first, as published."""

    word: Stripped | None = None  # if the file has none, the word as spelled in sentence1
    sentence1: Annotated[str, StringConstraints(min_length=1)]  # never stripped: the span counts leading spaces
    sentence2: Annotated[str, StringConstraints(min_length=1)]
    start1: Annotated[int, Field(ge=0)]
    end1: int
    label: YesNo

    @model_validator(mode="after")
    def _check_span(self) -> Wic:
        if not self.sentence1[self.start1 : self.end1].strip():
            raise ValueError(f"sentence1 has no word at {self.start1}:{self.end1}")
        return self

    def fields(self) -> Document:
        """Both sentences and the word as spelled in the first."""
        word = self.sentence1[self.start1 : self.end1]
        sentences = {"sentence1": self.sentence1.strip(), "sentence2": self.sentence2.strip()}
        return sentences | {"word": word, "label": self.label}

    def group(self) -> str:
        """Digest of the word: its pairs share sentences."""
        return content_digest((self.word or self.sentence1[self.start1 : self.end1]).lower())

    def texts(self) -> list[str]:
        """Both sentences."""
        return [self.sentence1.strip(), self.sentence2.strip()]


class RaceQuestion(BaseModel):
    """A question about an article, with four options."""

    model_config = ConfigDict(frozen=True)

    question: Text
    options: Annotated[list[Text], Field(min_length=4, max_length=4)]
    label: Annotated[int, _label("a b c d")] = Field(validation_alias="answer")


class Race(Row):
    """An article and its questions, in the form of the article files or of the hub (``problems``)."""

    article: Text
    problems: Annotated[list[RaceQuestion], Field(min_length=1)]

    @model_validator(mode="before")
    @classmethod
    def _normalise_problems(cls, raw: Any) -> Any:  # noqa: ANN401  (any JSON value)
        if not isinstance(raw, dict):
            return raw
        if isinstance(problems := raw.get("problems"), str):  # the hub stores the list as a Python literal
            try:
                return raw | {"problems": ast.literal_eval(problems)}
            except Exception:  # noqa: BLE001  (a literal may also raise TypeError, MemoryError and more)
                raise ValueError("problems is not a list of questions") from None
        if "questions" not in raw:
            return raw
        columns: list[Any] = [raw.get(key) for key in ("questions", "options", "answers")]
        lengths = {len(column) if isinstance(column, list) else None for column in columns}
        if len(lengths) != 1 or None in lengths:
            raise ValueError("questions, options and answers are not lists of one length")
        keys = ("question", "options", "answer")
        problems = [dict(zip(keys, each, strict=True)) for each in zip(*columns, strict=True)]
        return raw | {"problems": problems}

    def digest(self) -> str:
        """Digest of the article and its questions."""
        return content_digest(self.model_dump(exclude={"id"}))

    def group(self) -> str:
        """Digest of the article: a shot from it could give away the answer to the scored question."""
        return content_digest(self.article)

    def documents(self) -> list[Document]:
        """One document per question, with the earlier questions and their answers (paper.md 5.2)."""
        group = self.group()
        earlier: list[dict[str, str]] = []
        documents = []
        for number, problem in enumerate(self.problems, start=1):
            fields = {"article": self.article, "earlier": list(earlier), **problem.model_dump()}
            digest = content_digest([self.article, problem.model_dump()])
            documents.append({"id": f"{self.id or group}-{number}", "group": group, "digest": digest, **fields})
            earlier.append({"question": problem.question, "answer": problem.options[problem.label]})
        return documents

    def texts(self) -> list[str]:
        """Article, questions and options."""
        return [self.article, *(text for p in self.problems for text in (p.question, *p.options))]


ROWS: dict[str, type[Row]] = {
    "lambada": Lambada,
    "race_h": Race,
    "boolq": BoolQ,
    "winogrande": WinoGrande,
    "hellaswag": HellaSwag,
    "piqa": PiQA,
    "anli_r2": Anli,
    "hans": Hans,
    "wic": Wic,
}
"""Row schema of each task, in the order of the paper's tables."""
