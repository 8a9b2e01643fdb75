"""`thorns`: one file a command."""
