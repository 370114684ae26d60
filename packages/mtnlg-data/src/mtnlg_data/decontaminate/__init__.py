"""Decontamination: cuts the tasks' n-grams, with the text around them, out of the documents (paper.md 4.4).

    match   find the n-grams, and which of them are common (ngrams.py, matches.py)
    plan    cut the first match, ``window`` characters on each side and on to the next of . ! ?; repeat on the rest to
            the right. Drop pieces shorter than ``shortest`` characters, and documents of more than ``most_splits``
            pieces as a whole (matches.py)
    ledger  list every cut, one file per shard: position, n-gram, and the tasks and rows that have it
    cut     write the documents without the cut characters

Offsets are into the original text, and a match ends where its last word ends.
"""
