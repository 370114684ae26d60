"""Filter: rules of Gopher, C4 and FineWeb, URL lists, personal data; none applies unless a source asks for it."""
