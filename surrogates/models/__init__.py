"""Gaussian processes whose posterior is a set of functions, as BoTorch and GPyTorch models."""
