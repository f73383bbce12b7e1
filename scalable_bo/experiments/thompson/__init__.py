"""Parallel Thompson sampling on functions drawn from a Gaussian process prior."""
