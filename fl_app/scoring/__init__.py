"""Reconstructions against the truth: metrics, matching, floors and pictures."""
