"""Which levels of a tree are done: a file a level, which a run that was killed leaves to the next one."""

from __future__ import annotations

from dataclasses import dataclass

from pipelines.storage import Folder

_LEVEL, _SUCCESS = "level-", "_SUCCESS"


@dataclass(frozen=True, slots=True)
class Marks:
    """Marks in the folder of a recipe. `level-3_SUCCESS` says: the third pass above the rows is done, for the leaves
    whose fingerprint the file holds."""

    home: Folder

    def put(self, height: int, placed: str) -> None:
        """Mark a level as done above the leaves with the fingerprint `placed`."""
        self.home.put(f"{_LEVEL}{height}{_SUCCESS}", placed.encode())

    def of(self, placed: str) -> set[int]:
        """Levels that are done above these very leaves. Other marks go: what they speak of is being replaced."""
        found = set()
        for name in self._names():
            if self.home.read(name).decode() == placed:
                found.add(int(name.removeprefix(_LEVEL).removesuffix(_SUCCESS)))
            else:
                self.home.drop(name)
        return found

    def clear(self) -> None:
        for name in self._names():
            self.home.drop(name)

    def _names(self) -> list[str]:
        return [name for name in self.home.names() if is_mark(name)]


def is_mark(name: str) -> bool:
    return name.startswith(_LEVEL) and name.endswith(_SUCCESS)
