"""Source readers, one per format: WARC and ARC, JSON lines, the Pile, CSV, tar, text, Parquet, Arrow.

No reader raises because of a file's content. A record that cannot be read is yielded as ``Dropped``, and reading
resumes after it where the format allows (at the next WARC record, line or row group); a file that ends in mid-record
yields one ``Dropped`` for the rest.
"""

from .reader import WHOLE, Part, Reader, reader
from .record import MAX_RECORD_BYTES, Dropped, Record, SourceFile, read_records

__all__ = [
    "MAX_RECORD_BYTES",
    "WHOLE",
    "Dropped",
    "Part",
    "Reader",
    "Record",
    "SourceFile",
    "read_records",
    "reader",
]
