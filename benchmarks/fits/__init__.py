"""The benchmarks of hyperparameter fits: recovery, scores, batch sizes, curvature, memory."""
