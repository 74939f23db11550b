"""Scripts that measure what the README states, side by side in one run. `python -m benchmarks` runs them all."""

from recall.remarks import ignore_fork_remark

ignore_fork_remark()
