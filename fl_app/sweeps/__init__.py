"""Sweeps: many runs and attacks from one file, shared where they are equal, in parallel, resumable."""
