"""`python -m standins.nebula --port 9669`: run the stand-in until it is interrupted."""

from __future__ import annotations

import argparse
import threading

from standins.nebula.server import Server


def main() -> None:
    parser = argparse.ArgumentParser(description="A NebulaGraph stand-in on loopback.")
    parser.add_argument("--port", type=int, default=9669)
    parser.add_argument("--delay-s", type=float, default=0.0, help="how long a definition takes to become visible")
    options = parser.parse_args()
    with Server(port=options.port, delay_s=options.delay_s) as server:
        print(f"listening on {server.address}", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
