"""Files from and to elsewhere: Common Crawl's snapshots by name, URLs of any store, checked and resumed."""
