"""Attacks that rebuild nothing: they answer a question about the client's data with scores of candidates."""
