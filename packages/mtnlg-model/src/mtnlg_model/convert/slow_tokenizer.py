"""A Hugging Face folder's tokenizer.json, or one that transformers makes of a slow tokenizer's files.

    tokenizer.model             SentencePiece, BPE or Unigram (Llama 2, Mistral)
    vocab.json and merges.txt   byte-level BPE, whose text is split as GPT-2's, GPT-NeoX's or Qwen's
    added_tokens.json, special_tokens_map.json, tokenizer_config.json      tokens beside these, and which are special

transformers chooses the conversion by ``tokenizer_class``, and several of its classes give other tokens than the
sentencepiece library (docs/decisions/0131). Asked without a class it goes by the file alone, so no class is passed on,
and a sample of pieces must come out as that library has it.
"""

from __future__ import annotations

import importlib
import json
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from tokenizers import Tokenizer, processors

from mtnlg_model.checkpoint.chat_files import CONFIG, GENERATION, named_tokens, own_file, read_chat_files
from mtnlg_model.checkpoint.manifest import TOKENIZER
from mtnlg_model.console import Failure, foreign_data
from mtnlg_model.files import read_small
from mtnlg_model.tokenizer_file import LONGEST_TOKEN, read_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator

SENTENCEPIECE: Final = "tokenizer.model"
BYTE_LEVEL: Final = ("vocab.json", "merges.txt")
BESIDE: Final = ("added_tokens.json", "special_tokens_map.json", CONFIG)
SPLITS: Final = {"gpt_neox": "gpt_neox", "qwen2": "qwen2", "qwen3": "qwen2"}
"""model_type whose splitting of text a byte-level model has; GPT-2's unless listed."""
MAX_BYTES: Final = 16 << 20
SAMPLE: Final = 2000


@contextmanager
def tokenizer_of(folder: Path, other: Path | None = None) -> Iterator[Path]:
    """Yield the path of a Hugging Face folder's tokenizer.json, made of its slow tokenizer's files if it has none.

    It is a copy of ``other`` if that is given. Beside it are the folder's `chat_files`; where none says which tokens
    end an answer, a generation_config.json has those of config.json, as in transformers. A tokenizer.json says itself
    which token it puts before every text; ``add_bos_token`` is for slow files, and true for a tokenizer.model unless
    given. Raises ``Failure`` if the folder has no tokenizer, or if transformers or sentencepiece is needed and missing.
    """
    names = (TOKENIZER, SENTENCEPIECE, BYTE_LEVEL[0])
    model = next((name for name in names if other or (folder / name).exists()), BYTE_LEVEL[0])
    if model == BYTE_LEVEL[0] and not all((folder / name).exists() for name in BYTE_LEVEL):
        raise Failure(f"{folder}: no {TOKENIZER}, no {SENTENCEPIECE}, no {' and '.join(BYTE_LEVEL)}; put one there")
    with TemporaryDirectory() as scratch:
        path = Path(scratch) / TOKENIZER
        try:
            with foreign_data(folder / model):
                json_file = other or own_file(folder, TOKENIZER)
                config = _read_json(folder, "config.json")
                text = read_tokenizer(json_file) if model == TOKENIZER else _convert(folder, model, config)
                named_tokens(folder, Tokenizer.from_str(text))  # refuses what is malformed before the weights are read
                chat_files = read_chat_files(folder)
                if GENERATION not in chat_files and isinstance(ends := config.get("eos_token_id"), list):
                    chat_files[GENERATION] = json.dumps({"eos_token_id": ends}).encode()
        except Failure:
            raise
        except ImportError as error:
            way_out = "pip install 'mtnlg-model[sentencepiece]'"
            raise Failure(f"{folder / model}: needs the library {error.name}; {way_out}") from None
        except Exception as error:  # noqa: BLE001  (none of the libraries raises anything narrower)
            reason = str(error).strip().partition("\n")[0][:200] or type(error).__name__
            raise Failure(f"{folder / model}: not a slow tokenizer's: {reason}") from None
        path.write_text(text, encoding="utf-8")
        for name, content in chat_files.items():
            path.with_name(name).write_bytes(content)
        yield path


def _read_json(folder: Path, name: str) -> dict[str, Any]:
    content = json.loads(read_small(own_file(folder, name), MAX_BYTES)) if (folder / name).exists() else {}
    if not isinstance(content, dict):
        raise Failure(f"{folder / name}: not a table")
    return content


def _convert(folder: Path, model: str, config: dict[str, Any]) -> str:
    """The content of tokenizer.json for slow files."""
    files = {name: read_small(own_file(folder, name), MAX_BYTES) for name in BESIDE if (folder / name).exists()}
    settings = _read_json(folder, CONFIG)
    own = (SENTENCEPIECE,) if model == SENTENCEPIECE else BYTE_LEVEL
    files |= {name: read_small(own_file(folder, name), MAX_BYTES) for name in own}
    kind = "llama"
    if model != SENTENCEPIECE:
        is_qwen = str(settings.get("tokenizer_class")).startswith("Qwen")
        kind = "qwen2" if is_qwen else SPLITS.get(str(config.get("model_type")), "gpt2")
    plain = {name: _name(value) for name, value in settings.items() if name not in {"tokenizer_class", "auto_map"}}
    files |= {CONFIG: json.dumps(plain).encode(), "config.json": json.dumps({"model_type": kind}).encode()}
    if model == SENTENCEPIECE:
        for library in ("sentencepiece", "google.protobuf"):  # without which transformers tries other formats
            importlib.import_module(library)
    tokenizer = _by_transformers(files)
    if model == SENTENCEPIECE:
        _require_equal(tokenizer, files[SENTENCEPIECE], folder / SENTENCEPIECE)
    begin = named_tokens(folder, tokenizer).begin or [tokenizer.token_to_id("<s>")]
    tokenizer.post_processor = None
    if settings.get("add_bos_token", model == SENTENCEPIECE) and begin[0] is not None:
        name = str(tokenizer.id_to_token(begin[0]))
        single = processors.TemplateProcessing(single=[name, "$A"], special_tokens=[(name, begin[0])])
        tokenizer.post_processor = single
    return tokenizer.to_str()


def _name(value: object) -> object:
    """A token as its text, where a folder has an object, which transformers reads in one form only."""
    return value["content"] if isinstance(value, dict) and isinstance(value.get("content"), str) else value


def _by_transformers(files: dict[str, bytes]) -> Tokenizer:
    from transformers import AutoTokenizer  # noqa: PLC0415  (the extra)

    with TemporaryDirectory() as copy:
        for name, content in files.items():
            (Path(copy) / name).write_bytes(content)
        made = AutoTokenizer.from_pretrained(copy, local_files_only=True, trust_remote_code=False)
    tokenizer: Tokenizer = made.backend_tokenizer
    return tokenizer


def _require_equal(tokenizer: Tokenizer, content: bytes, place: Path) -> None:
    """Raise ``Failure`` if more than one in a hundred texts, of two pieces each, has other tokens than it should."""
    from sentencepiece import SentencePieceProcessor  # noqa: PLC0415  (the extra)

    processor: Any = SentencePieceProcessor(model_proto=content)
    pieces = [processor.id_to_piece(number) for number in range(len(processor))]
    if (longest := max(map(len, pieces))) > LONGEST_TOKEN:
        raise Failure(f"{place}: a piece of {longest:,} characters, more than {LONGEST_TOKEN:,}")
    normal = [
        piece
        for number, piece in enumerate(pieces)
        if not (processor.is_control(number) or processor.is_unknown(number) or processor.is_byte(number))
    ]
    texts = [f"{piece} {normal[-1 - n]}".replace("▁", " ") for n, piece in enumerate(normal)]
    texts = texts[:: max(1, len(texts) // SAMPLE)]
    encoded = tokenizer.encode_batch(texts, add_special_tokens=False)
    others = sum(ours.ids != theirs for ours, theirs in zip(encoded, processor.encode(texts), strict=True))
    if others * 100 > len(texts):
        reason = f"{others} of {len(texts)} texts have other tokens than sentencepiece's once converted"
        raise Failure(f"{place}: {reason}; put a {TOKENIZER} beside it")
