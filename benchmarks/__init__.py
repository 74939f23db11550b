"""Scripts that measure what the README states, side by side in one run. `python -m benchmarks` runs them all."""
