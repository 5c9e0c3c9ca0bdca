"""Buffered Stochastic Variational Inference."""
