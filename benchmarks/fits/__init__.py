"""The benchmarks of hyperparameter fits: recovery, scores, batch sizes, known noise."""
