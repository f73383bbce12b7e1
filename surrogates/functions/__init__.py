"""Functions to evaluate and differentiate: random features, prior and posterior paths."""
