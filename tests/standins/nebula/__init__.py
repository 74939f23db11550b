"""A NebulaGraph server in this process: real wire, small strict grammar, documented errors. Test equipment only.

It claims a subset of nGQL 3.8 and refuses the rest with `stand-in does not understand`; what it claims, it answers as
the recorded 3.8.0 server did. Start it with `Server().start()` or `python -m standins.nebula --port 9669`.
"""

from __future__ import annotations

from standins.nebula.server import Faults, Server

__all__ = ["Faults", "Server"]
