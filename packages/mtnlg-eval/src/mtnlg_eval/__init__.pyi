from .evaluation import evaluate
from .report import write_report
from .scoring.decoder_lm import DecoderLM
from .table import wilson_interval
from .tasks.published import TASKS

__all__ = ["TASKS", "DecoderLM", "evaluate", "wilson_interval", "write_report"]
