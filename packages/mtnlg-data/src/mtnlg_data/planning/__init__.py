"""Estimates for a curation: the size of its corpus, from the files, and the disk, memory and hours that it takes."""
