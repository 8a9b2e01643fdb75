"""Attacks that learn from public examples how an update gives an example away, one file each."""
