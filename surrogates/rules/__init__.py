"""What carries the weights of a model."""
