"""Where runs keep files: a local folder or any URI that pyarrow or fsspec understands. Whole files appear or none.

Never knows what is in the files.
"""

from __future__ import annotations

import io
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from recall.errors import ConfigError, TerminalStoreError
from recall.settings import Settings

_UNFINISHED = ".tmp-"


@dataclass(frozen=True, slots=True)
class Folder:
    """One folder by URI or absolute path. Small and picklable; opens its file system at each use."""

    uri: str

    @classmethod
    def of_runs(cls, settings: Settings) -> Folder:
        """The folder that `pipeline.runs` names: a URI as it is, a path under the data directory."""
        runs = settings.pipeline.runs
        return cls(runs.rstrip("/") if "://" in runs else str(settings.data_path(runs)))

    def __truediv__(self, name: str) -> Folder:
        return Folder(f"{self.uri}/{name}")

    def put(self, name: str, content: bytes) -> str:
        """Write a whole file, replacing one of that name; returns its address. Raises TerminalStoreError."""
        address = f"{self.uri}/{name}"
        with _mapped(address):
            system, root = _open(self.uri)
            system.create_dir(root, recursive=True)
            if not isinstance(system, fs.LocalFileSystem):
                # Object stores show an object only when its upload is complete.
                with system.open_output_stream(f"{root}/{name}") as stream:
                    stream.write(content)
                return address
            unfinished = f"{root}/{_UNFINISHED}{uuid.uuid4().hex}"
            with system.open_output_stream(unfinished) as stream:
                stream.write(content)
            system.move(unfinished, f"{root}/{name}")
        return address

    def put_table(self, name: str, table: pa.Table) -> str:
        """Write `table` as one Parquet file; returns its address. Raises TerminalStoreError."""
        buffer = io.BytesIO()
        pq.write_table(table, buffer, compression="zstd")
        return self.put(name, buffer.getvalue())

    def read(self, name: str) -> bytes:
        with _mapped(f"{self.uri}/{name}"):
            system, root = _open(self.uri)
            with system.open_input_stream(f"{root}/{name}") as stream:
                return bytes(stream.read())

    def read_table(self, name: str, columns: list[str] | None = None) -> pa.Table:
        with _mapped(f"{self.uri}/{name}"):
            system, root = _open(self.uri)
            return pq.read_table(f"{root}/{name}", columns=columns, filesystem=system, partitioning=None)

    def rows(self, name: str) -> int:
        """Rows of a Parquet file, from its footer."""
        with _mapped(f"{self.uri}/{name}"):
            system, root = _open(self.uri)
            with system.open_input_file(f"{root}/{name}") as file:
                return int(pq.read_metadata(file).num_rows)

    def names(self) -> list[str]:
        """Names in the folder, sorted, unfinished files left out; none when there is no such folder."""
        with _mapped(self.uri):
            system, root = _open(self.uri)
            found = system.get_file_info(fs.FileSelector(root, allow_not_found=True))
            return sorted(info.base_name for info in found if not info.base_name.startswith(_UNFINISHED))

    def sweep(self) -> None:
        """Remove what killed writers left unfinished."""
        with _mapped(self.uri):
            system, root = _open(self.uri)
            for info in system.get_file_info(fs.FileSelector(root, allow_not_found=True)):
                if info.base_name.startswith(_UNFINISHED):
                    system.delete_file(info.path)

    def drop(self, name: str) -> None:
        """Delete one file."""
        with _mapped(f"{self.uri}/{name}"):
            system, root = _open(self.uri)
            system.delete_file(f"{root}/{name}")

    def remove(self) -> None:
        """Delete the folder and everything in it."""
        with _mapped(self.uri):
            system, root = _open(self.uri)
            system.delete_dir(root)


def _open(uri: str) -> tuple[fs.FileSystem, str]:
    if "://" not in uri:
        return fs.LocalFileSystem(), uri
    try:
        system, path = fs.FileSystem.from_uri(uri)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return _open_fsspec(uri)
    return system, path


def _open_fsspec(uri: str) -> tuple[fs.FileSystem, str]:
    try:
        import fsspec

        system, path = fsspec.core.url_to_fs(uri)
    except (ImportError, ValueError) as error:
        raise ConfigError(f"pipeline.runs {uri!r} is no path and no known URI: {error}") from None
    return fs.PyFileSystem(fs.FSSpecHandler(system)), str(path)


@contextmanager
def _mapped(address: str) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        detail = f"{error}; make room or fix the path and run again: every finished part is kept"
        raise TerminalStoreError("staging (files)", address, detail) from error
