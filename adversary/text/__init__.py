"""Attacks on text: what an update says of words before any search, spans of layers, and searches over word vectors."""
