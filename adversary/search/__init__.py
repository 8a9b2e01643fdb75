"""Gradient matching: a search over objective, space, priors, labels, observers and optimiser, vectorised over targets."""
