"""The papers' benchmarks: each run writes one JSON record."""
