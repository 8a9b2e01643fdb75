"""Closed forms: what an update gives away without a search, one file each."""
