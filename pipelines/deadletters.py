"""Dead letters: one JSON line for each row that a job could not take, with the reason. The job goes on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from recall.errors import TerminalStoreError
from recall.keys import compact_json


class DeadLetters:
    """A JSONL file on the machine that drives the job, made when the first letter arrives. Lines survive a kill."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0
        self._file: BinaryIO | None = None

    @property
    def address(self) -> str | None:
        """The file's path once there is one."""
        return str(self.path) if self.count else None

    def add(self, letter: Mapping[str, object]) -> None:
        """Append one letter. Raises TerminalStoreError when it cannot be written."""
        try:
            if self._file is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._file = self.path.open("ab", buffering=0)
            self._file.write(compact_json(letter) + b"\n")
        except OSError as error:
            raise TerminalStoreError("dead letters (file)", str(self.path), error.strerror or str(error)) from error
        self.count += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()
