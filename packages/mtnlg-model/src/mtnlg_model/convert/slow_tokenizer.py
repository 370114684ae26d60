"""A Hugging Face folder's tokenizer.json, or one made of a slow tokenizer's files by what they define.

    tokenizer.model             SentencePiece, BPE or Unigram (Llama 2, Mistral): pieces, and how text is normalized
    vocab.json and merges.txt   byte-level BPE, whose text is split as GPT-2's or as Qwen's
    added_tokens.json, special_tokens_map.json, tokenizer_config.json      tokens beside these, and which are special

BPE of SentencePiece joins the two neighbours whose sum is the piece of the highest score; its merges are therefore all
cuts of a piece in two pieces, in order of score. A sample of pieces must come out as the sentencepiece library has it.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from mtnlg_model.checkpoint.chat_files import CONFIG, named_tokens, own_file, read_chat_files
from mtnlg_model.checkpoint.manifest import TOKENIZER
from mtnlg_model.console import Failure, foreign_data
from mtnlg_model.files import read_small
from mtnlg_model.tokenizer import BOS_NAMES, EOD_NAMES
from mtnlg_model.tokenizer_file import LONGEST_TOKEN, read_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator

SENTENCEPIECE: Final = "tokenizer.model"
BYTE_LEVEL: Final = ("vocab.json", "merges.txt")
SPECIAL: Final = ("bos_token", "eos_token", "unk_token", "pad_token", "additional_special_tokens")
MAX_BYTES: Final = 16 << 20
SAMPLE: Final = 2000
QWEN: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""GPT-4's pattern, with every digit by itself."""


@contextmanager
def tokenizer_of(folder: Path) -> Iterator[Path]:
    """Yield the path of a Hugging Face folder's tokenizer.json, made of its slow tokenizer's files if it has none.

    Beside it are the folder's `chat_files`.

    Whether it puts a token before every text is as ``add_bos_token`` in tokenizer_config.json says; where that is
    silent, as the tokenizer.json does, and yes for a tokenizer.model. Raises ``Failure`` if the folder has no
    tokenizer, or if sentencepiece is needed and missing.
    """
    names = (TOKENIZER, SENTENCEPIECE, BYTE_LEVEL[0])
    model = next((name for name in names if (folder / name).exists()), BYTE_LEVEL[0])
    if model == BYTE_LEVEL[0] and not all((folder / name).exists() for name in BYTE_LEVEL):
        raise Failure(f"{folder}: no {TOKENIZER}, no {SENTENCEPIECE}, no {' and '.join(BYTE_LEVEL)}; put one there")
    try:
        with foreign_data(folder / model):
            text = _definition(folder, model, _read_json(folder, CONFIG))
            named_tokens(folder, Tokenizer.from_str(text))  # refuses what is malformed before the weights are read
            chat_files = read_chat_files(folder)
    except Failure:
        raise
    except ImportError:
        way_out = "pip install 'mtnlg-model[sentencepiece]'"
        raise Failure(f"{folder / model}: needs the libraries sentencepiece and protobuf; {way_out}") from None
    except Exception as error:  # noqa: BLE001  (neither library raises anything narrower)
        reason = str(error).partition("\n")[0][:200] or type(error).__name__
        raise Failure(f"{folder / model}: not a slow tokenizer's: {reason}") from None
    with TemporaryDirectory() as scratch:
        path = Path(scratch) / TOKENIZER
        path.write_text(text, encoding="utf-8")
        for name, content in chat_files.items():
            path.with_name(name).write_bytes(content)
        yield path


def _read_json(folder: Path, name: str) -> dict[str, Any]:
    if not (folder / name).exists():
        return {}
    try:
        content = json.loads(read_small(own_file(folder, name), MAX_BYTES))
    except ValueError as error:
        raise Failure(f"{folder / name}: not JSON: {error}") from None
    if not isinstance(content, dict):
        raise Failure(f"{folder / name}: not a table")
    return content


def _definition(folder: Path, model: str, settings: dict[str, Any]) -> str:
    """The content of tokenizer.json, from the folder's own or from the slow tokenizer's file ``model``."""
    begins = settings.get("add_bos_token")
    if model == TOKENIZER:
        text = read_tokenizer(own_file(folder, TOKENIZER))
        if begins is None:
            return text
        tokenizer = Tokenizer.from_str(text)
    else:
        tokenizer = _sentencepiece(folder) if model == SENTENCEPIECE else _byte_level(folder, settings)
        _add_tokens(tokenizer, folder, settings)
    if begins or (begins is None and model == SENTENCEPIECE):
        names = [*_names(settings.get("bos_token")), *BOS_NAMES]
        numbers = [(name, tokenizer.token_to_id(name)) for name in names if tokenizer.token_to_id(name) is not None][:1]
        for name, _ in numbers:
            tokenizer.post_processor = processors.TemplateProcessing(single=[name, "$A"], special_tokens=numbers)
    elif begins is not None:
        tokenizer.post_processor = None
    return tokenizer.to_str()


def _byte_level(folder: Path, settings: dict[str, Any]) -> Tokenizer:
    vocabulary = _read_json(folder, BYTE_LEVEL[0])
    lines = read_small(own_file(folder, BYTE_LEVEL[1]), MAX_BYTES).decode().split("\n")
    merges = [tuple(line.rstrip("\r").split(" ")) for line in lines if line and not line.startswith("#version")]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))  # type: ignore[arg-type]  # the library checks them
    tokenizer.decoder = decoders.ByteLevel()
    kind = settings.get("tokenizer_class") or str(_read_json(folder, "config.json").get("model_type")).capitalize()
    if str(kind).startswith("Qwen"):
        split = pre_tokenizers.Split(Regex(QWEN), "isolated")
        tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=settings.get("add_prefix_space") is True)
    return tokenizer


def _sentencepiece(folder: Path) -> Tokenizer:
    from sentencepiece import SentencePieceProcessor, sentencepiece_model_pb2  # noqa: PLC0415  (the extra)

    content = read_small(own_file(folder, SENTENCEPIECE), MAX_BYTES)
    processor: Any = SentencePieceProcessor(model_proto=content)  # refuses what is damaged
    schema: Any = sentencepiece_model_pb2  # generated, without annotations
    proto = schema.ModelProto.FromString(content)
    unigram, kinds = proto.trainer_spec.model_type == 1, proto.SentencePiece
    if proto.trainer_spec.model_type not in {1, 2}:
        raise Failure(f"{folder / SENTENCEPIECE}: neither BPE nor Unigram; put a {TOKENIZER} beside it")
    normal = [piece for piece in proto.pieces if piece.type == kinds.NORMAL]
    if (longest := max(len(piece.piece) for piece in proto.pieces)) > LONGEST_TOKEN:
        raise Failure(f"{folder / SENTENCEPIECE}: a piece of {longest:,} characters, more than {LONGEST_TOKEN:,}")
    fallback, unknown = proto.trainer_spec.byte_fallback, processor.unk_id()
    if unigram:
        tokenizer = Tokenizer(models.Unigram([(piece.piece, piece.score) for piece in proto.pieces], unknown, fallback))
    else:
        numbers = {piece.piece: number for number, piece in enumerate(proto.pieces)}
        options = {"unk_token": processor.id_to_piece(unknown), "fuse_unk": True, "byte_fallback": fallback}
        tokenizer = Tokenizer(models.BPE(numbers, _merges(normal, numbers), **options))
    spec = proto.normalizer_spec
    steps: list[Any] = [normalizers.Precompiled(spec.precompiled_charsmap)] if spec.precompiled_charsmap else []
    if spec.remove_extra_whitespaces:
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    steps += [normalizers.Prepend("▁")] if spec.add_dummy_prefix else []
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    parts: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)] if spec.add_dummy_prefix else parts)
    _require_equal(tokenizer, processor, [piece.piece for piece in normal], folder)
    added = {kinds.UNKNOWN: True, kinds.CONTROL: True, kinds.USER_DEFINED: False}
    tokenizer.add_tokens(
        [
            AddedToken(piece.piece, special=added[piece.type], normalized=False)
            for piece in proto.pieces
            if piece.type in added
        ]
    )
    return tokenizer


def _merges(pieces: list[Any], numbers: dict[str, int]) -> list[tuple[str, str]]:
    """Every cut of a piece in two pieces; those of the highest score first."""
    merges: list[tuple[str, str]] = []
    for whole in sorted(pieces, key=lambda piece: -piece.score):
        cuts = [(whole.piece[:place], whole.piece[place:]) for place in range(1, len(whole.piece))]
        pairs = [pair for pair in cuts if pair[0] in numbers and pair[1] in numbers]
        merges += sorted(pairs, key=lambda pair: (numbers[pair[0]], numbers[pair[1]]))
    return merges


def _require_equal(tokenizer: Tokenizer, processor: Any, pieces: list[str], folder: Path) -> None:  # noqa: ANN401  (no annotations)
    """Raise ``Failure`` if more than one in a hundred texts, of two pieces each, has other tokens than it should."""
    texts = [f"{piece} {pieces[-1 - n]}".replace("▁", " ") for n, piece in enumerate(pieces)]
    texts = texts[:: max(1, len(texts) // SAMPLE)]
    encoded = tokenizer.encode_batch(texts, add_special_tokens=False)
    others = sum(ours.ids != theirs for ours, theirs in zip(encoded, processor.encode(texts), strict=True))
    if others * 100 > len(texts):
        reason = f"{others} of {len(texts)} texts have other tokens than sentencepiece's once converted"
        raise Failure(f"{folder / SENTENCEPIECE}: {reason}; put a {TOKENIZER} beside it")


def _add_tokens(tokenizer: Tokenizer, folder: Path, settings: dict[str, Any]) -> None:
    """Add the tokens that the JSON files name, at their numbers, and declare special those that end or begin texts."""
    declared = {**_read_json(folder, "special_tokens_map.json"), **settings}
    special = {name for key in SPECIAL for name in _names(declared.get(key))}
    table = {int(number): entry for number, entry in (settings.get("added_tokens_decoder") or {}).items()}
    table |= {int(number): {"content": name} for name, number in _read_json(folder, "added_tokens.json").items()}
    for number, entry in sorted(table.items()):
        name, switches = entry["content"], {key: entry.get(key) is True for key in ("lstrip", "rstrip", "single_word")}
        is_special = entry.get("special") is True or name in special
        tokenizer.add_tokens([AddedToken(name, special=is_special, normalized=False, **switches)])
        if tokenizer.token_to_id(name) != number:
            raise Failure(f"{folder}: token {name!r:.100} has number {number}, but {tokenizer.token_to_id(name)} here")
    known = [name for name in (*EOD_NAMES, *BOS_NAMES, *sorted(special)) if tokenizer.token_to_id(name) is not None]
    tokenizer.add_tokens([AddedToken(name, special=True, normalized=False) for name in dict.fromkeys(known)])


def _names(value: object) -> list[str]:
    if isinstance(value, list):
        return [name for entry in value for name in _names(entry)]
    name = value.get("content") if isinstance(value, dict) else value
    return [name] if isinstance(name, str) and name else []
