"""Refinements beyond the paper: trained end to end, by a network, and other estimators of the gradient."""
