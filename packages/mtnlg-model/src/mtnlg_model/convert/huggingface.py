"""Import and export Hugging Face folders a few tensors at a time: memory holds a few tensors, never the model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch
from pydantic import Field

from mtnlg_model.checkpoint.chat_files import CONFIG, PartOfFile, own_file, read_chat_files
from mtnlg_model.checkpoint.manifest import TOKENIZER, parse_json
from mtnlg_model.checkpoint.reader import Checkpoint, empty_decoder
from mtnlg_model.checkpoint.tensor_file import DTYPES, TensorFile, TensorSpec, write_tensor_file
from mtnlg_model.console import Failure, progress
from mtnlg_model.files import read_small, write_json
from mtnlg_model.local_paths import local_path
from mtnlg_model.tokenizer import Tokenizer
from mtnlg_model.tokenizer_file import missing_tokenizer

from .config_json import is_huggingface, read_family, to_config_json
from .family_tensors import from_theirs, their_shapes, to_theirs
from .output import check_tokenizer, new_checkpoint, new_folder, require_file_size

if TYPE_CHECKING:
    from torch import Tensor

    from mtnlg_model.config import ModelConfig
    from mtnlg_model.decoder import Decoder

IGNORED_SUFFIXES: Final = (".attn.bias", ".attn.masked_bias", ".attention.bias", ".attention.masked_bias", ".inv_freq")
"""Causal masks and rotary frequencies that older folders store; they follow from config.json."""
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
SHARD_BYTES = 5 << 30
INDEX_BYTES = 1 << 26


class _Index(PartOfFile):
    weight_map: dict[str, str] = Field(min_length=1)


def export_huggingface(checkpoint: Checkpoint, folder: Path | str, *, family: str | None = None) -> str:
    """Export the weights to ``folder``, which must not exist.

    Writes safetensors shards with their index, config.json and the tokenizer, which ``AutoModelForCausalLM`` and
    ``AutoTokenizer`` open; returns the name of the model's class. The family is the first of `families` that supports
    this decoder, unless ``family`` names one. Raises ``Failure`` if none does, if a file is damaged, or if the
    tokenizer has more tokens than the model.
    """
    folder, config = local_path(folder), checkpoint.config
    definition, content = to_config_json(config, family)
    checkpoint.verify_weights()
    check_tokenizer(folder, config, checkpoint.tokenizer_path, checkpoint.directory)
    groups: dict[str, list[str]] = {}
    specs: dict[str, TensorSpec] = {}
    for name in checkpoint.names:
        shapes = their_shapes(definition, config, name)
        groups |= dict.fromkeys(shapes, definition.group(name)[0])
        specs |= {key: TensorSpec(checkpoint.dtype(name), shape) for key, shape in shapes.items()}
    converted: dict[str, Tensor] = {}

    def tensor(key: str) -> Tensor:
        if key not in converted:
            converted.clear()
            group = groups[key]
            converted.update(to_theirs(definition, config, group[0], *(checkpoint.tensor(name) for name in group)))
        advance(1)
        return converted[key]

    shards = _split_into_shards(specs)
    with new_folder(folder) as partial, progress("export", len(specs), "tensors") as advance:
        files = [f"model-{n + 1:05d}-of-{len(shards):05d}.safetensors" for n in range(len(shards))]
        files = files if len(files) > 1 else [WEIGHTS]
        for file, shard in zip(files, shards, strict=True):
            write_tensor_file(partial / file, {key: specs[key] for key in shard}, tensor)
        if len(files) > 1:
            weight_map = {key: file for file, shard in zip(files, shards, strict=True) for key in shard}
            total = sum(spec.bytes for spec in specs.values())
            write_json(partial / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})
        tokenizer = Tokenizer(checkpoint.tokenizer_path)
        dtype = str(checkpoint.dtype("embedding.token.weight")).removeprefix("torch.")
        ends = sorted(tokenizer.ends) if len(tokenizer.ends) > 1 else tokenizer.eod
        ids = {"bos_token_id": tokenizer.bos, "eos_token_id": ends}
        write_json(partial / "config.json", {**content, **ids, "torch_dtype": dtype})
        shutil.copyfile(checkpoint.tokenizer_path, partial / TOKENIZER)
        chat_files = read_chat_files(checkpoint.directory)
        for name, raw in chat_files.items():
            (partial / name).write_bytes(raw)
        named = {"bos_token": tokenizer.bos_token, "eos_token": tokenizer.eod_token, "unk_token": tokenizer.eod_token}
        default = {"model_max_length": config.sequence, **named}
        settings = json.loads(chat_files[CONFIG]) if CONFIG in chat_files else default
        settings.pop("auto_map", None)  # names code
        # Other tokenizer classes of transformers 5 build another tokenizer from the vocabulary in tokenizer.json.
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
        write_json(partial / CONFIG, settings)
    return definition.architecture


def import_huggingface(
    folder: Path | str,
    target: Path | str,
    *,
    vocabulary_multiple: int = 1,
    sequence: int | None = None,
    family: str | None = None,
    tokenizer: Path | str | None = None,
) -> ModelConfig:
    """Import ``folder`` as the checkpoint ``target``, which must not exist.

    The vocabulary is padded to a multiple of ``vocabulary_multiple``; ``sequence`` limits the context, in tokens;
    ``family`` refers to a family that `families` does not name; ``tokenizer`` replaces the folder's tokenizer.json.
    Raises ``Failure``, before anything is written, if the folder's family is unknown or the folder is incomplete.
    """
    folder, target = Path(folder), local_path(target)
    weights = HuggingFaceWeights(folder, vocabulary_multiple, sequence, family)
    config, path = weights.config, Path(tokenizer) if tokenizer else weights.tokenizer_path
    with (
        new_checkpoint(target, config, path, folder) as writer,
        progress("import", config.tensor_count, "tensors") as advance,
    ):
        for name, shape in config.parameter_shapes().items():
            writer.add(name, shape, "weight", None, weights.tensor(name))
            advance(1)
    return config


class HuggingFaceWeights:
    """The weights of a Hugging Face folder as the decoder's tensors, read in place, one at a time.

    Raises ``Failure`` if the folder's family is not in `families`, or the folder is incomplete.
    """

    def __init__(
        self, folder: Path, vocabulary_multiple: int = 1, sequence: int | None = None, family: str | None = None
    ) -> None:
        self.directory = folder
        self._family, self.config = read_family(folder, vocabulary_multiple, sequence, family)
        config, self._files = self.config, _files_by_tensor(folder)
        for key, file in self._files.items():  # before the sizes, which quantization changes
            if (dtype := file.entries[key].dtype) not in DTYPES and not key.endswith(IGNORED_SUFFIXES):
                raise Failure(f"{folder}: {key:.100}: {dtype}: only {', '.join(DTYPES)} are supported")
        self.paths = sorted({file.path for file in self._files.values()})
        require_file_size(config, self.paths)
        if config.tensor_count > 4 * (len(self._files) + 16):  # before listing names: a forged count may be huge
            raise Failure(f"{folder}: {len(self._files):,} tensors where config.json claims {config.tensor_count:,}")
        self._sources = {
            name: _sources(folder, self._files, their_shapes(self._family, config, name))
            for name in config.parameter_shapes()
        }
        used = {key for keys in self._sources.values() for key in keys}
        _, (head,) = self._family.group("head.weight")
        for key in self._files:
            if config.tied and key == head:
                _require_equal(folder, self._files, head, self._sources["embedding.token.weight"][0])
            elif key not in used and not key.endswith(IGNORED_SUFFIXES):
                raise Failure(f"{folder}: {key:.100}: not a tensor of {self._family.architecture}")

    @property
    def tokenizer_path(self) -> Path:
        """The folder's tokenizer.json. Raises ``Failure`` if there is none."""
        if not (self.directory / TOKENIZER).exists():
            raise missing_tokenizer(self.directory)
        return own_file(self.directory, TOKENIZER)

    def tensor(self, name: str, box: tuple[slice, ...] | None = None) -> Tensor:
        """A parameter of the decoder, whole or a box of it, on the CPU, in the stored dtype."""
        tensors = [_read_tensor(self._files[key], key) for key in self._sources[name]]
        whole = from_theirs(self._family, self.config, name, tensors)
        return whole if box is None else whole[box]

    def dtype(self, name: str) -> torch.dtype:
        """The dtype in which a parameter is stored."""
        key = self._sources[name][0]
        return DTYPES[self._files[key].entries[key].dtype]

    def decoder(self, dtype: torch.dtype | None = None, device: torch.device | str = "cpu") -> Decoder:
        """The decoder with these weights, in evaluation mode; ``dtype`` None keeps the stored one."""
        decoder = empty_decoder(self.config, dtype or self.dtype("embedding.token.weight"), device)
        with torch.no_grad():
            for name, parameter in decoder.named_parameters():
                parameter.copy_(self.tensor(name))
        return decoder.eval()


def open_weights(path: Path) -> Checkpoint | HuggingFaceWeights:
    """The weights of a checkpoint, of the newest in a folder of them, or of a Hugging Face folder, read in place."""
    return HuggingFaceWeights(path) if is_huggingface(path) else Checkpoint.open(path)


def _split_into_shards(specs: dict[str, TensorSpec]) -> list[list[str]]:
    shards: list[list[str]] = [[]]
    size = 0
    for key, spec in specs.items():
        if shards[-1] and size + spec.bytes > SHARD_BYTES:
            shards.append([])
            size = 0
        shards[-1].append(key)
        size += spec.bytes
    return shards


def _files_by_tensor(folder: Path) -> dict[str, TensorFile]:
    """Safetensors file by tensor name: `WEIGHTS` if present, as in transformers, else by `INDEX`."""
    index = folder / INDEX
    names = [WEIGHTS]
    if index.exists() and not (folder / WEIGHTS).exists():
        content = parse_json(read_small(own_file(folder, INDEX), INDEX_BYTES), _Index, index)
        names = sorted(set(content.weight_map.values()))
    files: dict[str, TensorFile] = {}
    for name in names:
        if "/" in name or not (folder / name).is_file():
            raise Failure(f"{folder}: {name:.100}: no such weights; only safetensors are read, never a pickled .bin")
        file = TensorFile(own_file(folder, name))
        if twice := file.entries.keys() & files.keys():
            raise Failure(f"{folder}: {min(twice):.100}: in {name} and in another file; keep one")
        files |= dict.fromkeys(file.entries, file)
    return files


def _require_equal(folder: Path, files: dict[str, TensorFile], head: str, table: str) -> None:
    """Raise ``Failure`` if a tied head is stored with other weights, which versions of transformers use differently."""
    stored, tied = (files[key].entries[key] for key in (head, table))
    alike = (stored.dtype, stored.shape) == (tied.dtype, tied.shape)
    if not alike or not torch.equal(*(_read_tensor(files[key], key) for key in (head, table))):
        reason = f"differs from {table}, which config.json says it is tied to"
        raise Failure(f"{folder}: {head}: {reason}; set tie_word_embeddings to false, or remove it")


def _sources(folder: Path, files: dict[str, TensorFile], expected: dict[str, tuple[int, ...]]) -> list[str]:
    """Keys in ``files`` of ``expected`` tensors. Raises ``Failure`` for missing ones, other shapes, mixed dtypes."""
    keys, dtypes = [], set()
    for name, shape in expected.items():
        key = name if name in files else name.partition(".")[2]  # a model without its head has no prefix
        if key not in files:
            raise Failure(f"{folder}: {name}: no such tensor")
        stored = files[key].entries[key]
        if stored.shape != shape:
            raise Failure(f"{folder}: {key}: {stored.dtype} {list(stored.shape)} where config.json says {list(shape)}")
        keys.append(key)
        dtypes.add(stored.dtype)
    if len(dtypes) > 1:
        raise Failure(f"{folder}: {keys[0]}: {' and '.join(sorted(dtypes))} in one layer's q, k and v")
    return keys


def _read_tensor(file: TensorFile, key: str) -> Tensor:
    stored = file.entries[key]
    tensor = torch.empty(stored.shape, dtype=DTYPES[stored.dtype])
    file.read(key, [(0, tensor.numel())], tensor)
    return tensor
