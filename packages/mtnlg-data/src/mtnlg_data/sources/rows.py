"""Make documents of objects, and read the lines of a file: shared by the readers of JSON lines, CSV, tar and text."""

from __future__ import annotations

import codecs
import json
import mmap
import re
from typing import TYPE_CHECKING, Any

from mtnlg_data.settings import setting

from .reader import WHOLE, Part, Reader
from .record import Dropped, Record, json_metadata, no_text, too_large
from .streams import Damaged, Stream

if TYPE_CHECKING:
    import io
    from collections.abc import Iterator
    from pathlib import Path

URL_KEYS = ("url", "uri")
Line = tuple[int, bytes, str]  # number, from 0, content, and place for messages
MESSAGE_KEY = re.compile(r"\{(\w+)\}")


class Rows(Reader):
    """Files of objects, or of rows with columns."""

    field: str = setting("text", "Key or column of the text; a.b is key b of object a.", min_length=1)
    id: str = setting("id", "Key or column of a document's id; a.b is key b of object a.", min_length=1)
    message: str | None = setting(
        None,
        "Of a chat, a list of messages under field: the text of each, such as '{role}: {content}\\n'; or json, for "
        "tokenize's chat: the list as it is, or with field = 'prompt+answer' one of these two keys.",
        pattern=MESSAGE_KEY.pattern + "|^json$",
    )

    def text_of(self, value: object) -> str | None:
        """Text of the value under ``field``: a string, or all messages of a chat; None if it has no text."""
        if self.message == "json" and isinstance(value, list):
            return json.dumps(value, ensure_ascii=False)
        if self.message is None or not isinstance(value, list):
            return value if isinstance(value, str) else None
        parts = MESSAGE_KEY.split(self.message)  # keys at odd places, between what stands around them
        try:
            return "".join(message[part] or "" if n % 2 else part for message in value for n, part in enumerate(parts))
        except (KeyError, TypeError):
            return None

    def record(self, row: dict[str, Any], number: int, where: str) -> Record | Dropped:
        """The document of an object; removes the text, and an id that is a string, from ``row``."""
        fields = self.field.split("+", 1) if self.message == "json" else [self.field]
        values = [find_key(row, field) for field in fields]
        value, *answers = (holder.pop(key, None) for holder, key in values)
        if answers:
            value = [{"role": "user", "content": value}, {"role": "assistant", "content": answers[0]}]
        text = self.text_of(value)
        if text is None:
            kind = "" if value is None else f" ({type(value).__name__})"
            if isinstance(value, list) and self.message is None:
                kind += "; set message if it is a chat"
            others = (
                f"{name}{' (a list)' * isinstance(one, list)}"
                for name, one in row.items()
                if isinstance(one, str | list)
            )
            return no_text(where, self.field, kind, others)
        url = next((row[key] for key in URL_KEYS if isinstance(row.get(key), str)), None)
        holder, key = find_key(row, self.id)
        identifier = holder.get(key)
        if isinstance(identifier, str):  # a number also stays in the row, since its type would be lost
            del holder[key]
        record_id = str(identifier) if type(identifier) in {str, int, float} else None
        return Record(number, text, url, id=record_id or None, metadata=json_metadata(row))


def find_key(row: dict[str, Any], path: str) -> tuple[dict[str, Any], str]:
    """The object that has the key, or the last of nested keys a.b.c, and that key; an empty object if none has it."""
    while path not in row:
        first, _, path = path.partition(".")
        row = row.get(first, {})
        if not path or not isinstance(row, dict):
            return {}, path
    return row, path


def read_lines(path: Path, max_bytes: int, part: Part = WHOLE) -> Iterator[Line | Dropped]:
    """Yield the lines of a file, or those that begin in a part; one of more than ``max_bytes`` is dropped."""
    number, where = -1, path.name
    try:
        with (stream := Stream(path)).file as file:
            end = None if part == WHOLE else _seek_part(file, part)
            while end is None or file.tell() < end:
                number += 1
                where = f"{path.name}: line {number + 1}{part.place}"
                line = stream.read(file.readline, max_bytes + 1)
                if not line:
                    return
                is_long = len(line) > max_bytes
                while len(line) > max_bytes and not line.endswith(b"\n"):
                    line = stream.read(file.readline, max_bytes + 1)
                line = line if number else line.removeprefix(codecs.BOM_UTF8)
                yield too_large(where, max_bytes) if is_long else (number, line, where)
    except Damaged as error:
        reason, what = error.args
        yield Dropped(reason, where, what, ends_file=True)


def _seek_part(file: io.BufferedIOBase, part: Part) -> int:
    """Seek the first line that begins in a part of a plain file; returns the end of the part."""
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        begin, end = part.of(len(content))
        file.seek(content.find(b"\n", begin - 1, end) + 1 or end if begin else 0)
    return end
