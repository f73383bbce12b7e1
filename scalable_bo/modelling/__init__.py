"""The surrogate of a study: what it is trained on, its kernels, and their fits."""
