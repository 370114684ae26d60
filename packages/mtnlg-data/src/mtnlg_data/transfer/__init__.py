"""Transfer files from and to other places: Common Crawl's snapshots by name, URLs of any store, checked and resumed."""
