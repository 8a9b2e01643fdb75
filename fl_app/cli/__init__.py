"""`thorns`: one file per command."""
