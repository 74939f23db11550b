"""Search plane in tantivy indexes: a folder per tenant and index version, no server.

One process at a time writes a tenant, for the length of one call; any number of processes read and see every commit.
"""

from __future__ import annotations

import json
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import tantivy
from tantivy import Query

from recall.analysis import highlights, query_terms
from recall.errors import TerminalStoreError, TransientStoreError
from recall.planes.folders import Stamp, TenantFolders, Threads, admitted_rows, tombstone_rows
from recall.planes.opening import PlaneContext
from recall.planes.tantivy_index import (
    Filters,
    all_of,
    any_of,
    build_schema,
    document,
    one_of,
    register_words,
    unscored,
)
from recall.ports import SearchHit, SearchQuery, WriteReport
from recall.rows import Ref, Tombstone
from recall.schema import document_schema
from recall.settings import TantivySettings

STORE = "search (tantivy)"
_META = "meta.json"
# Fetched beyond the page in the hope that no tie reaches further.
_TIE_MARGIN = 16
# Sums of the same addends in another order differ in the last of the seven digits that tantivy's scores have.
_DIGITS = ".5g"


@dataclass(slots=True)
class _Opened:
    """An index as readers of this process hold it; `stamp` tells one commit of the files from the next."""

    index: tantivy.Index
    stamp: tuple[int, int, int]


class TantivySearch:
    """`SearchStore` on tantivy. Opens nothing before its first use; keeps `settings.open_tenants` indexes open."""

    max_writers: int | None = 1

    def __init__(self, settings: TantivySettings, context: PlaneContext) -> None:
        registry = context.registry
        self._settings = settings
        self._entities = tuple(registry.entities)
        self._columns = registry.filter_columns
        self._schema = document_schema(registry)
        self._folders = TenantFolders(STORE, context.data_dir / settings.path, registry.search_version(), _META)
        self._threads = Threads(STORE, settings.threads)
        self._open: OrderedDict[Path, _Opened] = OrderedDict()
        self._opening = threading.Lock()
        self._writing = threading.Lock()

    # ---- writing ----

    def prepare(self, tenant: str) -> None:
        path = self._folders.path(tenant)
        if (path / _META).exists():
            return
        with self._writing, self._folders.writing(path), _errors(path):
            if not (path / _META).exists():
                tantivy.Index(build_schema(self._columns), str(path))

    def upsert(self, tenant: str, table: pa.Table) -> WriteReport:
        """Write records of `document_schema`; a call is one commit, so a killed process leaves all of it or nothing."""
        if not table.num_rows:
            return WriteReport()
        self.prepare(tenant)
        path = self._folders.path(tenant)
        with self._writing, self._folders.writing(path), _errors(path):
            index = _opened(path)
            stored = _stamps(index, table["row_key"].unique().to_pylist())
            fresh, stale = admitted_rows(table, stored)
            if fresh.num_rows:
                self._commit(index, fresh, stored)
        return WriteReport(written=fresh.num_rows, stale=stale)

    def _commit(self, index: tantivy.Index, fresh: pa.Table, stored: dict[str, Stamp]) -> None:
        # One thread: the segments of a commit stay few, and the machine's cores are for the stages beside this one.
        writer = index.writer(self._settings.writer_heap_mb << 20, 1)
        for row in fresh.to_pylist():
            if row["row_key"] in stored:
                writer.delete_documents_by_term("key", row["row_key"])
            writer.add_document(document(row, self._columns))
        writer.commit()
        writer.wait_merging_threads()

    def delete(self, tenant: str, tombstones: Sequence[Tombstone]) -> WriteReport:
        return self.upsert(tenant, tombstone_rows(tenant, tombstones, self._schema))

    def hashes(self, tenant: str, keys: Sequence[str]) -> dict[str, str]:
        path = self._folders.find(tenant)
        if path is None or not keys:
            return {}
        with _errors(path):
            index = self._reading(path)
            return {doc["key"][0]: _identity(doc)[2] for doc in _by_key(index, list(dict.fromkeys(keys)))}

    def finish(self, tenant: str) -> None:
        """Let merges end, remove files no commit needs, drop all versions but this and the one before it."""
        path = self._folders.find(tenant)
        if path is None:
            return
        with self._writing, self._folders.writing(path), _errors(path):
            writer = _opened(path).writer(self._settings.writer_heap_mb << 20, 1)
            writer.garbage_collect_files()
            writer.wait_merging_threads()
            self._folders.drop_outdated(tenant)

    # ---- reading ----

    async def search(self, query: SearchQuery, *, timeout_s: float | None = None) -> list[SearchHit]:
        address = str(self._folders.path(query.caller.tenant))
        return await self._threads.run(address, timeout_s, lambda: self._search(query))

    async def count(self, tenant: str, *, timeout_s: float | None = None) -> dict[str, int]:
        address = str(self._folders.path(tenant))
        return await self._threads.run(address, timeout_s, lambda: self._count(tenant))

    async def health(self, *, timeout_s: float | None = None) -> None:
        await self._threads.run(str(self._folders.root), timeout_s, self._folders.check)

    async def close(self) -> None:
        self._threads.close()
        with self._opening:
            self._open.clear()

    # ---- on the adapter's threads ----

    def _search(self, query: SearchQuery) -> list[SearchHit]:
        path = self._folders.loaded(query.caller.tenant)
        terms = query_terms(query.text)
        if not terms or not query.entities or query.limit < 1:
            return []
        with _errors(path):
            index = self._reading(path)
            searcher = index.searcher()
            asked = _scored(index.schema, searcher, query, terms)
            return [
                SearchHit(ref, score, doc["version"][0], _marked(doc, terms) if query.highlight else ())
                for score, ref, doc in _page(searcher, asked, query.offset, query.limit)
            ]

    def _count(self, tenant: str) -> dict[str, int]:
        path = self._folders.find(tenant)
        if path is None:
            return {}
        with _errors(path):
            index = self._reading(path)
            searcher, schema = index.searcher(), index.schema
            live = Query.term_query(schema, "live", True)
            counts = Counter(
                {
                    name: searcher.search(all_of([live, Query.term_query(schema, "entity", name)]), 1).count
                    for name in self._entities
                }
            )
            return dict(+counts)

    def _reading(self, path: Path) -> tantivy.Index:
        """The index at `path` as of its last commit."""
        meta = (path / _META).stat()
        stamp = (meta.st_ino, meta.st_mtime_ns, meta.st_size)
        with self._opening:
            opened = self._open.get(path)
            if opened is None:
                opened = self._open[path] = _Opened(_opened(path), stamp)
            elif opened.stamp != stamp:
                opened.index.reload()
                opened.stamp = stamp
            self._open.move_to_end(path)
            while len(self._open) > self._settings.open_tenants:
                self._open.popitem(last=False)
            return opened.index


def _opened(path: Path) -> tantivy.Index:
    index = tantivy.Index.open(str(path))
    register_words(index)
    # No watching thread per index: the stamp of the meta file says when to reload.
    index.config_reader("manual")
    index.reload()
    return index


def _scored(schema: tantivy.Schema, searcher: tantivy.Searcher, query: SearchQuery, terms: Sequence[str]) -> Query:
    """Any of `terms`, scored; everything else must hold and scores nothing."""
    musts = [Query.term_query(schema, "live", True), one_of(schema, "entity", sorted(set(query.entities)))]
    if query.caller.scope is not None:
        musts.append(Query.term_query(schema, "scope", query.caller.scope))
    if query.where is not None:
        musts.append(Filters(schema, searcher).query(query.where))
    words = any_of([Query.term_query(schema, "terms", term, "freq") for term in terms])
    return all_of([words, *map(unscored, musts)])


def _page(searcher: tantivy.Searcher, asked: Query, offset: int, limit: int) -> Iterator[tuple[float, Ref, Any]]:
    """Ranks offset+1 … offset+limit by (score desc, ref). Ties at either end of the page are read in full."""
    wanted = min(offset + limit, max(1, searcher.num_docs))
    size = wanted + _TIE_MARGIN
    while True:
        hits = [(_rounded(score), address) for score, address in searcher.search(asked, size, count=False).hits]
        if len(hits) < size or hits[-1][0] < hits[wanted - 1][0]:
            break
        size *= 4
    if len(hits) <= offset:
        return
    highest, lowest = hits[offset][0], hits[min(wanted, len(hits)) - 1][0]
    before = sum(score > highest for score, _ in hits)
    read = [(score, searcher.doc(address)) for score, address in hits if lowest <= score <= highest]
    ranked = sorted(((score, Ref(*_identity(doc)[:2]), doc) for score, doc in read), key=lambda hit: (-hit[0], hit[1]))
    yield from ranked[offset - before : offset - before + limit]


def _rounded(score: float) -> float:
    return float(format(score, _DIGITS))


def _marked(doc: Any, terms: Sequence[str]) -> tuple[str, ...]:
    return highlights(doc["text"][0].decode(), frozenset(terms))


def _identity(doc: Any) -> list[str]:
    """[entity, id, hash]."""
    identity: list[str] = json.loads(doc["identity"][0])
    return identity


def _by_key(index: tantivy.Index, keys: Sequence[str]) -> Iterator[Any]:
    searcher = index.searcher()
    found = searcher.search(one_of(index.schema, "key", keys), max(1, len(keys)), count=False)
    return (searcher.doc(address) for _, address in found.hits)


def _stamps(index: tantivy.Index, keys: Sequence[str]) -> dict[str, Stamp]:
    return {
        doc["key"][0]: Stamp(doc["version"][0], not doc["live"][0] and not _identity(doc)[2])
        for doc in _by_key(index, keys)
    }


@contextmanager
def _errors(path: Path) -> Iterator[None]:
    """What tantivy raises, as StoreError with the folder it happened in."""
    try:
        yield
    except OSError as error:
        raise TransientStoreError(STORE, str(path), f"{error}: is the disk full or the folder gone?") from error
    except ValueError as error:
        if "LockBusy" in str(error):
            detail = "another process is writing here: wait until it is done, then try again"
            raise TransientStoreError(STORE, str(path), detail) from error
        raise TerminalStoreError(STORE, str(path), str(error)) from error
    except RuntimeError as error:
        raise TerminalStoreError(STORE, str(path), str(error)) from error
