"""Regression without a GPyTorch model."""
