from .console import Failure, UsageFailure
from .document import read_documents, write_documents
from .engine import Local, open_engine
from .extract.boilerplate import BoilerplateSettings, main_text
from .extract.charset import decode_html
from .extract.paragraphs import read_page
from .filters.rules import Effect, Rule, edit, measure
from .job import run_step
from .mojibake import fix_text
from .near_duplicates import find_duplicates
from .pipeline import curate
from .recipe import Recipe, load_recipe
from .schema import Document
from .settings import setting
from .sources import Dropped, Part, Reader, Record, SourceFile, reader
from .step import Drop, Outcome, Step
from .steps.clean import Clean
from .steps.decontaminate import Decontaminate
from .steps.deduplicate import Deduplicate
from .steps.exact import Exact
from .steps.extract import Extract
from .steps.filter import Filter
from .steps.quality import Quality
from .steps.tokenize import Tokenize
from .stream import DocumentStream, Sample, TokenStream, open_stream
from .text.batch import TextBatch
from .tokens.store import TokenStore

__all__ = [
    "BoilerplateSettings",
    "Clean",
    "Decontaminate",
    "Deduplicate",
    "Document",
    "DocumentStream",
    "Drop",
    "Dropped",
    "Effect",
    "Exact",
    "Extract",
    "Failure",
    "Filter",
    "Local",
    "Outcome",
    "Part",
    "Quality",
    "Reader",
    "Recipe",
    "Record",
    "Rule",
    "Sample",
    "SourceFile",
    "Step",
    "TextBatch",
    "TokenStore",
    "TokenStream",
    "Tokenize",
    "UsageFailure",
    "curate",
    "decode_html",
    "edit",
    "find_duplicates",
    "fix_text",
    "load_recipe",
    "main_text",
    "measure",
    "open_engine",
    "open_stream",
    "read_documents",
    "read_page",
    "reader",
    "run_step",
    "setting",
    "write_documents",
]
