"""The parts of scripts/mutants.py."""
