"""LanceDB tables shared by processes: writers beside each other, killed writers, readers that miss nothing."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import lancedb
import pytest

from recall.planes.conformance.data import DIM, Record, conformance_registry, item, unit_vector, vector_table
from recall.planes.conformance.suite import PATIENCE_S
from recall.planes.lance import LanceVectors
from recall.planes.opening import ModelId, PlaneContext
from recall.ports import VectorQuery
from recall.rows import Caller
from recall.settings import LanceDbSettings

SETTINGS = LanceDbSettings(index_from=256, optimize_every=4)
TENANT = "shared"
ROWS = 40
BATCHES = 12


def _context(folder: Path) -> PlaneContext:
    return PlaneContext(conformance_registry(), ModelId("conformance", DIM), folder)


def _upsert(store: LanceVectors, folder: Path, records: list[Record]) -> int:
    return store.upsert(TENANT, vector_table(_context(folder).registry, TENANT, records)).written


def _write_versions(folder: Path, pipe: Connection, first: int) -> None:
    """Write the same rows in every second version, beginning with `first`."""
    store = LanceVectors(SETTINGS, _context(folder))
    pipe.send("ready")
    pipe.recv()
    for version in range(first, 2 * BATCHES, 2):
        _upsert(store, folder, [item(f"r{i}", version + 1) for i in range(ROWS)])
    store.finish(TENANT)
    pipe.send("done")


def _write_batches(folder: Path, pipe: Connection) -> None:
    """Write new rows for ever; say after every batch which one it was."""
    store = LanceVectors(SETTINGS, _context(folder))
    for batch in range(10_000):
        _upsert(store, folder, [item(f"b{batch}-{i}") for i in range(ROWS)])
        if batch % 5 == 4:
            store.finish(TENANT)
        pipe.send(batch)


@contextmanager
def _process(target: Any, *args: object) -> Iterator[tuple[Connection, BaseProcess]]:
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=target, args=(args[0], there, *args[1:]), daemon=True)
    process.start()
    there.close()
    try:
        yield here, process
    finally:
        process.kill()
        process.join()
        here.close()


def _heard(pipe: Connection) -> object:
    assert pipe.poll(PATIENCE_S), "the other process is silent"
    return pipe.recv()


def _stored(folder: Path) -> list[dict[str, Any]]:
    directory = folder / SETTINGS.path / TENANT
    (name,) = [path.stem for path in directory.glob("*.lance")]
    rows: list[dict[str, Any]] = lancedb.connect(directory).open_table(name).to_arrow().to_pylist()
    return rows


def test_two_writer_processes_double_nothing_and_the_highest_version_stays(tmp_path: Path) -> None:
    with _process(_write_versions, tmp_path, 0) as (even, _), _process(_write_versions, tmp_path, 1) as (odd, _):
        for pipe in (even, odd):
            assert _heard(pipe) == "ready"
        for pipe in (even, odd):
            pipe.send("go")
        for pipe in (even, odd):
            assert _heard(pipe) == "done"
    rows = _stored(tmp_path)
    assert Counter(row["key"] for row in rows).most_common(1)[0][1] == 1
    assert len(rows) == ROWS
    assert {row["version"] for row in rows} == {2 * BATCHES}


@pytest.mark.parametrize("acknowledged", [1, 9, 14])
async def test_a_killed_writer_leaves_every_acknowledged_row_once_and_whole_batches_only(
    tmp_path: Path, acknowledged: int
) -> None:
    with _process(_write_batches, tmp_path) as (pipe, process):
        seen = [_heard(pipe) for _ in range(acknowledged)]
        process.kill()
        process.join()
        while pipe.poll():
            try:
                seen.append(pipe.recv())
            except EOFError:
                break
    batches = Counter(row["id"].split("-")[0] for row in _stored(tmp_path))
    assert {f"b{batch}" for batch in seen} <= set(batches)
    assert set(batches.values()) == {ROWS}
    store = LanceVectors(SETTINGS, _context(tmp_path))
    assert _upsert(store, tmp_path, [item("after", 1)]) == 1
    store.finish(TENANT)
    assert await store.count(TENANT) == {"item": len(batches) * ROWS + 1}
    hits = await store.search(VectorQuery(Caller(TENANT), ("item",), unit_vector("q"), 1000))
    assert len({hit.ref for hit in hits}) == len(hits) == min(1000, len(batches) * ROWS + 1)
    await store.close()


async def test_a_reader_finds_all_rows_while_a_writer_process_writes_optimises_and_indexes(tmp_path: Path) -> None:
    store = LanceVectors(SETTINGS, _context(tmp_path))
    _upsert(store, tmp_path, [item(f"base{i}") for i in range(300)])
    store.finish(TENANT)
    query = VectorQuery(Caller(TENANT), ("item",), unit_vector("q"), 5000)
    with _process(_write_batches, tmp_path) as (pipe, _):
        last, read = -1, 0
        while last < 16:
            heard = _heard(pipe)
            assert isinstance(heard, int)
            last = heard
            ids = {hit.ref.id for hit in await store.search(query)}
            assert {f"base{i}" for i in range(300)} <= ids
            assert {f"b{batch}-{i}" for batch in range(last + 1) for i in range(ROWS)} <= ids
            read += 1
    assert read == 17
    await store.close()
