"""What libraries remark that is not so here. Programs say so once, when they start; the core never touches warnings."""

from __future__ import annotations

import warnings


def ignore_fork_remark() -> None:
    """LanceDB warns of every fork; Ray starts its processes by fork and exec, which is what the remark is not about."""
    warnings.filterwarnings("ignore", message="lancedb fork support", category=RuntimeWarning)
