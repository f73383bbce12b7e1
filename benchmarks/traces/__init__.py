"""Traces of the solvers on one system, to its exact solution."""
