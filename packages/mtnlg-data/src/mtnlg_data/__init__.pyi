from .clean.mojibake import fix_text
from .clean.stage import CleanSettings, clean_documents
from .decontaminate.cut_planning import DecontaminateSettings
from .decontaminate.stage import decontaminate_documents
from .dedup.plan import deduplication_state_bytes
from .dedup.stage import DeduplicateSettings, deduplicate_documents
from .document import batch_documents, read_documents, write_documents
from .engine import Local, open_engine
from .extract.boilerplate import BoilerplateSettings, main_text
from .extract.charset import decode_html
from .extract.paragraphs import read_page
from .extract.stage import extract_documents
from .extract.text import ExtractSettings
from .filters.rules import Effect, Rule, edit, measure
from .filters.settings import FilterSettings
from .filters.stage import apply_filters
from .pipeline import curate
from .quality.stage import QualitySettings, filter_documents
from .recipe import Recipe, load_recipe
from .schema import Document
from .settings import setting
from .sources import SourceFile
from .stream import TokenStream, open_stream
from .text.batch import TextBatch
from .tokens.stage import tokenize_documents
from .tokens.store import TokenStore
from .tokens.tokenizer import TokenizeSettings

__all__ = [
    "BoilerplateSettings",
    "CleanSettings",
    "DecontaminateSettings",
    "DeduplicateSettings",
    "Document",
    "Effect",
    "ExtractSettings",
    "FilterSettings",
    "Local",
    "QualitySettings",
    "Recipe",
    "Rule",
    "SourceFile",
    "TextBatch",
    "TokenStore",
    "TokenStream",
    "TokenizeSettings",
    "apply_filters",
    "batch_documents",
    "clean_documents",
    "curate",
    "decode_html",
    "decontaminate_documents",
    "deduplicate_documents",
    "deduplication_state_bytes",
    "edit",
    "extract_documents",
    "filter_documents",
    "fix_text",
    "load_recipe",
    "main_text",
    "measure",
    "open_engine",
    "open_stream",
    "read_documents",
    "read_page",
    "setting",
    "tokenize_documents",
    "write_documents",
]
