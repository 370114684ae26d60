"""Extract: raw records to text documents (charset, boilerplate removal, language)."""
