from .checkpoint.manifest import CheckpointError, Layout, Progress, latest
from .checkpoint.reader import Checkpoint, load, save
from .checkpoint.writer import CheckpointWriter, publish
from .config import LayerConfig, ModelConfig
from .console import Failure, IoFailure, UsageFailure
from .convert.huggingface import export_huggingface, import_huggingface
from .decoder import Decoder
from .families import PRESETS, preset
from .functional import EAGER, Attend, Ops, cross_entropy
from .generation.generate import complete, generate
from .generation.sampling import Sampling
from .tokenizer import Tokenizer

__all__ = [
    "EAGER",
    "PRESETS",
    "Attend",
    "Checkpoint",
    "CheckpointError",
    "CheckpointWriter",
    "Decoder",
    "Failure",
    "IoFailure",
    "LayerConfig",
    "Layout",
    "ModelConfig",
    "Ops",
    "Progress",
    "Sampling",
    "Tokenizer",
    "UsageFailure",
    "complete",
    "cross_entropy",
    "export_huggingface",
    "generate",
    "import_huggingface",
    "latest",
    "load",
    "preset",
    "publish",
    "save",
]
