"""Work on other machines: a Ray cluster that is joined, and what travels to its nodes and back without a shared disk."""
