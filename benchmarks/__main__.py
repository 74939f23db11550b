"""`make bench`: every benchmark that needs no server, one after the other, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys

COMMANDS = (
    ("benchmarks.embedder",),
    ("benchmarks.fusion",),
    ("benchmarks.vector_plane",),
    ("benchmarks.backfill", "--rows", "20000"),
    ("benchmarks.recall_latency", "--scale", "4"),
)


def main() -> int:
    failed = 0
    for module, *arguments in COMMANDS:
        print(f"\n## python -m {module} {' '.join(arguments)}", flush=True)
        failed += subprocess.run([sys.executable, "-m", module, *arguments], check=False).returncode != 0
    return failed


if __name__ == "__main__":
    sys.exit(main())
