"""A row of each of the nine tasks: the published schemas, checked, and the document that prompts are made of.

Every publisher has its own names and labels, and the hub's copies have others again. A model here takes them all,
refuses what cannot be scored (an unknown label, an empty option), and gives one form: a document, a flat dict that the
YAML prompts of tasks/ read. Each document carries

    id       the publisher's name for it, else a digest of what it says
    group    a digest of what must not be seen twice: no shot comes from the group of the row that is scored

``texts`` is what must not be trained on (paper.md 4.4): passages, questions, options.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

Document = dict[str, Any]
Text = Annotated[str, StringConstraints(min_length=1)]


def _label(**choices: int) -> BeforeValidator:
    """A label that is known by any of these names, as text, number or boolean."""

    def known(value: object) -> int:
        if (name := str(value).strip().lower()) in choices:
            return choices[name]
        raise ValueError(f"unknown label; use one of {', '.join(choices)}")

    return BeforeValidator(known)


def _like(pattern: str, mistake: str) -> AfterValidator:
    """A text in which the pattern is found."""

    def found(text: str) -> str:
        if not re.search(pattern, text):
            raise ValueError(mistake)
        return text

    return AfterValidator(found)


YesNo = Annotated[int, _label(**{"false": 0, "true": 1, "f": 0, "t": 1, "0": 0, "1": 1})]


def _named(name: object) -> str | None:
    return None if name is None or not str(name).strip() else str(name).strip()


class Row(BaseModel):
    """One published row; keys that no prompt needs are left aside."""

    model_config = ConfigDict(frozen=True, extra="ignore", str_strip_whitespace=True)

    id: Annotated[str | None, BeforeValidator(_named)] = Field(
        None, validation_alias=AliasChoices("id", "uid", "qID", "idx", "ind", "pairID", "example_id")
    )

    def fields(self) -> Document:
        """What the prompt reads."""
        return self.model_dump(exclude={"id"})

    def texts(self) -> list[str]:
        """What must not be trained on."""
        raise NotImplementedError

    def group(self) -> str:
        """A digest of what a prompt must not show twice."""
        return _digest(self.fields())

    def documents(self) -> list[Document]:
        """The documents to score: one for most tasks, one a question for RACE."""
        group = self.group()
        return [{"id": self.id or group, "group": group, **self.fields()}]


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()[:16]


class Lambada(Row):
    """A passage whose last word is to be guessed."""

    text: Annotated[str, _like(r"[^ ] +[^ ]", "there is no last word behind others")]

    def fields(self) -> Document:
        """The passage without its last word, and that word behind one space."""
        context, _, word = self.text.rpartition(" ")
        return {"text": self.text, "context": context, "target": f" {word}"}

    def texts(self) -> list[str]:
        """The whole passage."""
        return [self.text]


class BoolQ(Row):
    """A passage and a question that it answers by yes or no."""

    passage: Text
    question: Text
    label: YesNo

    def texts(self) -> list[str]:
        """Passage and question."""
        return [self.passage, self.question]


class WinoGrande(Row):
    """A sentence with a blank ``_`` and two names for it; ``answer`` is 1 or 2."""

    sentence: Annotated[str, _like(r"^[^_]*_[^_]*[^_\s][^_]*$", "one blank _ with words behind it is needed")]
    option1: Text
    option2: Text
    label: Annotated[int, _label(**{"1": 0, "2": 1})] = Field(validation_alias=AliasChoices("answer", "label"))

    def fields(self) -> Document:
        """Partial evaluation: the sentence up to each option, and the rest that both share (paper.md 5.2)."""
        before, after = self.sentence.split("_")
        return super().fields() | {"contexts": [before + self.option1, before + self.option2], "rest": after}

    def texts(self) -> list[str]:
        """The sentence with either option in it."""
        return [self.sentence.replace("_", option) for option in (self.option1, self.option2)]


class HellaSwag(Row):
    """A scene and four endings."""

    activity_label: Text
    ctx_a: Text
    ctx_b: str
    endings: Annotated[list[Text], Field(min_length=4, max_length=4)]
    label: Annotated[int, _label(**{"0": 0, "1": 1, "2": 2, "3": 3})]

    @model_validator(mode="after")
    def _endings_say_something(self) -> HellaSwag:
        if not all(map(_plain, self.endings)):
            raise ValueError("an ending is empty but for [..] marks")
        return self

    def fields(self) -> Document:
        """Scene and endings without WikiHow's ``[..]`` marks, the second part of the scene capitalised."""
        scene = f"{self.activity_label}: {self.ctx_a} {self.ctx_b.capitalize()}"
        return {"query": _plain(scene), "choices": [_plain(ending) for ending in self.endings], "label": self.label}

    def texts(self) -> list[str]:
        """The scene, continued by each ending."""
        return [f"{_plain(f'{self.ctx_a} {self.ctx_b}')} {_plain(ending)}" for ending in self.endings]


def _plain(text: str) -> str:
    return re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". ")).replace("  ", " ").strip()


class PiQA(Row):
    """A goal and two ways to reach it."""

    goal: Text
    sol1: Text
    sol2: Text
    label: Annotated[int, _label(**{"0": 0, "1": 1})]

    def texts(self) -> list[str]:
        """The goal and both ways."""
        return [self.goal, self.sol1, self.sol2]


class Anli(Row):
    """A premise and a hypothesis: entailed (0, e), neutral (1, n) or contradicted (2, c)."""

    premise: Text = Field(validation_alias=AliasChoices("premise", "context"))
    hypothesis: Text
    label: Annotated[int, _label(e=0, n=1, c=2, **{"0": 0, "1": 1, "2": 2})]

    def texts(self) -> list[str]:
        """Premise and hypothesis."""
        return [self.premise, self.hypothesis]


class Hans(Row):
    """Two sentences: the first entails the second (0) or does not (1), whatever their words have in common."""

    sentence1: Text
    sentence2: Text
    label: Annotated[int, _label(**{"entailment": 0, "non-entailment": 1})] = Field(validation_alias="gold_label")
    heuristic: Text
    subcase: Text
    template: Text

    def texts(self) -> list[str]:
        """Both sentences."""
        return [self.sentence1, self.sentence2]


class Wic(Row):
    """A word in two sentences: used in the same way or not; ``start1:end1`` marks it in the first, as published."""

    model_config = ConfigDict(str_strip_whitespace=False)  # or the marks would point beside the word

    sentence1: Text
    sentence2: Text
    start1: Annotated[int, Field(ge=0)]
    end1: int
    label: YesNo

    @model_validator(mode="after")
    def _the_word_is_there(self) -> Wic:
        if not self.sentence1[self.start1 : self.end1].strip():
            raise ValueError(f"no word of sentence1 lies at {self.start1}:{self.end1}")
        return self

    def fields(self) -> Document:
        """Both sentences and the word as the first has it."""
        word = self.sentence1[self.start1 : self.end1]
        sentences = {"sentence1": self.sentence1.strip(), "sentence2": self.sentence2.strip()}
        return sentences | {"word": word, "label": self.label}

    def texts(self) -> list[str]:
        """Both sentences."""
        return [self.sentence1.strip(), self.sentence2.strip()]


class RaceQuestion(BaseModel):
    """A question on an article and its four options."""

    model_config = ConfigDict(frozen=True, str_strip_whitespace=True)

    question: Text
    options: Annotated[list[Text], Field(min_length=4, max_length=4)]
    label: Annotated[int, _label(a=0, b=1, c=2, d=3)] = Field(validation_alias="answer")


class Race(Row):
    """An article and its questions, as the article files have them or as the hub has them (``problems``)."""

    article: Text
    problems: Annotated[list[RaceQuestion], Field(min_length=1)]

    @model_validator(mode="before")
    @classmethod
    def _problems_of_either_form(cls, raw: Any) -> Any:  # noqa: ANN401  (any JSON value)
        if not isinstance(raw, dict):
            return raw
        if isinstance(problems := raw.get("problems"), str):  # the hub keeps the list as Python text
            try:
                return raw | {"problems": ast.literal_eval(problems)}
            except (SyntaxError, ValueError):
                raise ValueError("problems is no list of questions") from None
        if "questions" not in raw:
            return raw
        columns: list[Any] = [raw.get(key) for key in ("questions", "options", "answers")]
        lengths = {len(column) if isinstance(column, list) else None for column in columns}
        if len(lengths) != 1 or None in lengths:
            raise ValueError("questions, options and answers are not lists of one length")
        keys = ("question", "options", "answer")
        problems = [dict(zip(keys, each, strict=True)) for each in zip(*columns, strict=True)]
        return raw | {"problems": problems}

    def group(self) -> str:
        """The article: a shot from it would tell the answer of the question that is scored."""
        return _digest(self.article)

    def documents(self) -> list[Document]:
        """Every question of the article, those before it with their answers (paper.md 5.2)."""
        group = self.group()
        earlier: list[dict[str, str]] = []
        documents = []
        for number, problem in enumerate(self.problems, start=1):
            own = {"article": self.article, "earlier": list(earlier), **problem.model_dump()}
            documents.append({"id": f"{self.id or group}-{number}", "group": group, **own})
            earlier.append({"question": problem.question, "answer": problem.options[problem.label]})
        return documents

    def texts(self) -> list[str]:
        """The article, every question and every option."""
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
"""The nine tasks in the order of the paper's tables, and the schema of their rows."""


def explain(error: ValidationError) -> str:
    """The first mistake of a row in a few words: key, value, what would be right."""
    detail = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in detail["loc"])
    message = detail["msg"].removeprefix("Value error, ")
    if detail["type"] == "missing":
        return f"{key}: required key is missing"
    if detail["type"] == "string_too_short":
        return f"{key} is empty"
    shown = json.dumps(detail["input"], ensure_ascii=False, default=str)
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    return f"{key} = {shown}: {message}" if key else message
