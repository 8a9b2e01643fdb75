"""Commands as a careless or hostile person would type them, by what they are about; `scripts/hostile.py` runs all."""
