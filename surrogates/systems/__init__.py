"""The linear systems whose solutions are representer weights, and their preconditioners."""
