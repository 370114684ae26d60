from .evaluation import evaluate
from .report import write_report
from .results.statistics import wilson_interval
from .scoring.decoder_lm import DecoderLM
from .scoring.open_model import ModelOptions, open_lm, open_model
from .tasks.published import TASKS

__all__ = [
    "TASKS",
    "DecoderLM",
    "ModelOptions",
    "evaluate",
    "open_lm",
    "open_model",
    "wilson_interval",
    "write_report",
]
