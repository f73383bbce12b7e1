"""Regression on the UCI data sets of the papers, and on a user's table."""
