"""Files as raw records: Parquet, JSON lines, CSV, or what a reader yields. Names the place of every record.

Never checks a record against the registry. Memory is bounded by one Parquet batch or one line.
"""

from __future__ import annotations

import csv
import glob
import gzip
import importlib
import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

import pyarrow as pa
import pyarrow.parquet as pq

from recall.entities import SourceSpec
from recall.errors import ConfigError, RecallError
from recall.registry import Registry

PARQUET_BATCH = 1024
_SUFFIXES = (".parquet", ".jsonl", ".ndjson", ".csv")
_Reader = Callable[[Sequence[Path]], Iterator[tuple[str | None, str, dict[str, object]]]]


@dataclass(frozen=True, slots=True)
class Input:
    """Files to read as one entity, or to hand to a reader together."""

    spec: SourceSpec
    files: tuple[Path, ...]

    @property
    def entity(self) -> str:
        return self.spec.entity or _stem(self.files[0])


@dataclass(frozen=True, slots=True)
class RawRecord:
    """One record at `place` (1-based line or row) of `file`, or the reason why it is none."""

    file: str
    place: int
    values: dict[str, object] | None
    reason: str = ""
    raw: object = ""
    tenant: str | None = None
    entity: str | None = None


def plan_inputs(registry: Registry, sources: Sequence[str | SourceSpec], base: Path) -> list[Input]:
    """What to read for `sources`; the registry's own when none are given, with relative paths under `base`.

    A string is `entity=path`, or a path: a folder in which the registry's sources are looked up, or files whose stem
    is the entity. Raises ConfigError when nothing is there.
    """
    inputs: list[Input] = []
    for source in sources or registry.sources:
        if isinstance(source, SourceSpec):
            inputs += _inputs(source, base)
        else:
            inputs += _named(registry, source)
    if not inputs:
        raise ConfigError("nothing to import: name files, or declare `sources` in the entity file")
    for found in inputs:
        if found.spec.reader is None and found.entity not in registry.entities:
            raise ConfigError(
                f"{found.files[0]}: the registry declares no entity {found.entity!r}; say which with entity=path"
            )
    return inputs


def _named(registry: Registry, source: str) -> list[Input]:
    name, separator, path = source.partition("=")
    if separator and name in registry.entities:
        return _inputs(SourceSpec(files=(path,), entity=name), Path())
    folder = Path(source)
    if folder.is_dir():
        declared = [found for spec in registry.sources for found in _inputs(spec, folder, required=False)]
        if declared:
            return declared
    by_name = [spec for spec in registry.sources if folder.name in {Path(file).name for file in spec.files}]
    if by_name and folder.is_file():
        return [Input(by_name[0], (folder,))]
    return _inputs(SourceSpec(files=(source,)), Path())


def _inputs(spec: SourceSpec, base: Path, *, required: bool = True) -> list[Input]:
    files = [path for pattern in spec.files for path in _expand(base / Path(pattern).expanduser(), required)]
    if not files:
        return []
    if spec.reader:
        return [Input(spec, tuple(files))]
    return [Input(spec, (path,)) for path in files]


def _expand(path: Path, required: bool) -> list[Path]:
    if path.is_dir():
        found = sorted(item for item in path.rglob("*") if item.is_file() and _format(item))
    elif path.is_file():
        return [path]
    else:
        found = sorted(Path(name) for name in glob.glob(str(path), recursive=True) if Path(name).is_file())
    if not found and required:
        raise ConfigError(f"{path}: no such file, or a folder without {', '.join(_SUFFIXES)} files")
    return found


def _format(path: Path) -> str | None:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] == ".gz":
        suffixes.pop()
    return suffixes[-1] if suffixes and suffixes[-1] in _SUFFIXES else None


def _stem(path: Path) -> str:
    return path.name.split(".")[0]


def read_input(source: Input, wanted: Callable[[list[str]], list[str]]) -> Iterator[RawRecord]:
    """Every record of `source`. `wanted` says which of a file's column names are worth reading."""
    if source.spec.reader:
        yield from _read_with(source.spec.reader, source.files)
        return
    path = source.files[0]
    kind = _format(path)
    try:
        if kind == ".parquet":
            yield from _read_parquet(path, wanted)
        elif kind == ".csv":
            yield from _read_csv(path)
        elif kind in (".jsonl", ".ndjson"):
            yield from _read_jsonl(path)
        else:
            yield RawRecord(str(path), 0, None, f"not one of {', '.join(_SUFFIXES)} (.gz allowed for text)")
    except (OSError, EOFError, pa.ArrowException) as error:
        yield RawRecord(str(path), 0, None, f"the file cannot be read: {error}")


def is_text(source: Input) -> bool:
    """Whether every value of the source is text."""
    return source.spec.reader is None and _format(source.files[0]) == ".csv"


def _binary(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path, "rb")) if path.suffix.lower() == ".gz" else path.open("rb")


def _read_jsonl(path: Path) -> Iterator[RawRecord]:
    """Lines end at the byte `\\n` and nowhere else: U+2028 is an ordinary character inside a JSON string."""
    with _binary(path) as file:
        for number, line in enumerate(file, start=1):
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
            if line.strip():
                yield _parsed(str(path), number, line)


def _parsed(file: str, number: int, line: bytes) -> RawRecord:
    shown = line[:400].decode(errors="backslashreplace")
    try:
        value = json.loads(line.decode())
    except UnicodeDecodeError as error:
        return RawRecord(file, number, None, f"invalid UTF-8 at byte {error.start}", shown)
    except (ValueError, RecursionError) as error:
        return RawRecord(file, number, None, f"not JSON: {error}", shown)
    if not isinstance(value, dict):
        return RawRecord(file, number, None, f"expected a JSON object, got {type(value).__name__}", shown)
    return RawRecord(file, number, value)


def _read_csv(path: Path) -> Iterator[RawRecord]:
    # The standard limit of 128 KiB a field is smaller than a long document.
    csv.field_size_limit(2**31 - 1)
    with _binary(path) as file:
        # Bytes that are no UTF-8 survive as lone surrogates, so that one bad row does not end the file.
        rows = csv.reader(io.TextIOWrapper(file, "utf-8-sig", errors="surrogateescape", newline=""), strict=True)
        header = next(rows, [])
        if len(set(header)) != len(header):
            yield RawRecord(str(path), 1, None, "a column name occurs twice in the header", ",".join(header))
            return
        while True:
            try:
                row = next(rows)
            except StopIteration:
                return
            except csv.Error as error:
                yield RawRecord(str(path), rows.line_num, None, f"not CSV: {error}")
                continue
            if row:
                yield _csv_record(str(path), rows.line_num, header, row)


def _csv_record(file: str, line: int, header: list[str], row: list[str]) -> RawRecord:
    raw = ",".join(row)
    if any("\udc80" <= letter <= "\udcff" for letter in raw):
        return RawRecord(file, line, None, "invalid UTF-8", raw)
    if len(row) != len(header):
        return RawRecord(file, line, None, f"{len(row)} values for {len(header)} columns", raw)
    return RawRecord(file, line, dict(zip(header, row, strict=True)))


def _read_parquet(path: Path, wanted: Callable[[list[str]], list[str]]) -> Iterator[RawRecord]:
    with pq.ParquetFile(path) as file:
        columns = wanted(file.schema_arrow.names)
        place = 0
        for batch in file.iter_batches(batch_size=PARQUET_BATCH, columns=columns):
            for index, values in enumerate(_batch_rows(batch), start=1):
                if isinstance(values, str):
                    yield RawRecord(str(path), place + index, None, values)
                else:
                    yield RawRecord(str(path), place + index, values)
            place += batch.num_rows


def _batch_rows(batch: pa.RecordBatch) -> Iterator[dict[str, object] | str]:
    try:
        yield from batch.to_pylist()
    except (UnicodeDecodeError, ValueError):
        # One unreadable value spoils the conversion of its batch: go through it row by row.
        for index in range(batch.num_rows):
            try:
                yield batch.slice(index, 1).to_pylist()[0]
            except (UnicodeDecodeError, ValueError) as error:
                yield f"a value cannot be read: {error}"


def _read_with(reader: str, files: tuple[Path, ...]) -> Iterator[RawRecord]:
    name = f"{reader}({', '.join(str(path) for path in files)})"
    place = 0
    try:
        for tenant, entity, values in _resolve(reader)(files):
            place += 1
            yield RawRecord(name, place, values, tenant=tenant, entity=entity)
    except RecallError as error:
        if isinstance(error, ConfigError):
            raise
        yield RawRecord(name, place + 1, None, f"the reader stopped: {error}")


def _resolve(reader: str) -> _Reader:
    module, separator, function = reader.partition(":")
    try:
        found = getattr(importlib.import_module(module), function) if separator else None
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"reader {reader!r} cannot be imported: {error}") from None
    if not callable(found):
        raise ConfigError(f"reader {reader!r} must be `module:function`")
    return cast(_Reader, found)
