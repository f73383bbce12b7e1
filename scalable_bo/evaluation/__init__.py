"""How an objective is evaluated: by calls, executors and external programs."""
