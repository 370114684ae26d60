"""What a curation will take: the size of its corpus, estimated from the files, and disk, memory and hours."""
