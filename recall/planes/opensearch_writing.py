"""Writing to OpenSearch: bulk calls bounded in rows and bytes, versions as the gate, an answer for every record.

A live record of version v is written as external version v, unless a higher one is stored; a tombstone as v + 1,
unless that or a higher one is stored. So a delete outranks its own version without anything being read first.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from opensearchpy import OpenSearch
from opensearchpy.helpers import streaming_bulk

from recall.errors import IndexMissing, TransientStoreError
from recall.planes.folders import newest_rows
from recall.planes.opensearch_schema import OpenSearchLayout, documents
from recall.planes.opensearch_session import STORE, OpenSearchSession
from recall.planes.opensearch_versions import OpenSearchVersions
from recall.ports import WriteFailure, WriteReport
from recall.settings import OpenSearchSettings

_KEYS_PER_READ = 1000
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_LAST_VERSION = 2**63 - 2
_CONFLICT = 409
# What of a bulk answer is read; the rest is not sent.
_ANSWER = "items.*._id,items.*.status,items.*.error.type,items.*.error.reason,items.*.error.caused_by.reason"


@dataclass(frozen=True, slots=True)
class _Record:
    """One record on its way: its bulk action and document as JSON."""

    key: str
    version: int
    buried: bool
    action: str
    document: str


@dataclass(frozen=True, slots=True)
class _Outcome:
    status: int
    reason: str = ""

    @property
    def transient(self) -> bool:
        return self.status == 429 or self.status >= 500


class OpenSearchWriter:
    def __init__(
        self,
        settings: OpenSearchSettings,
        layout: OpenSearchLayout,
        session: OpenSearchSession,
        versions: OpenSearchVersions,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._settings = settings
        self._layout = layout
        self._session = session
        self._versions = versions
        self._pause = pause

    def write(self, tenant: str, table: pa.Table) -> WriteReport:
        if not table.num_rows:
            return WriteReport()
        alias = self._layout.write_alias(self._versions.ensure(tenant))
        best = newest_rows(table)
        if len(best) < table.num_rows:
            table = table.take(pa.array(sorted(best.values()), pa.int64()))
        written = stale = 0
        failures: list[WriteFailure] = []
        for first in range(0, table.num_rows, self._settings.bulk_rows):
            part = self._write_part(tenant, alias, table.slice(first, self._settings.bulk_rows))
            written, stale = written + part.written, stale + part.stale
            failures += part.failures
        return WriteReport(written, stale, tuple(failures))

    def hashes(self, tenant: str, keys: Sequence[str]) -> dict[str, str]:
        found = self._stored(tenant, list(dict.fromkeys(keys)), ["hash"])
        return {key: source["hash"] for key, source in found.items()}

    def _write_part(self, tenant: str, alias: str, part: pa.Table) -> WriteReport:
        records = {record.key: record for record in self._records(tenant, part)}
        outcomes = {
            key: _Outcome(400, f"versions lie between 0 and {_LAST_VERSION}, this one is {record.version}")
            for key, record in records.items()
            if not 0 <= record.version <= _LAST_VERSION
        }
        try:
            outcomes |= self._deliver(alias, [record for key, record in records.items() if key not in outcomes])
        except IndexMissing:
            self._versions.forget(tenant)
            raise
        refused = [records[key] for key, outcome in outcomes.items() if outcome.status == _CONFLICT]
        repeated = self._buried_before(tenant, [record for record in refused if record.buried])
        written = sum(outcome.status < 300 for outcome in outcomes.values()) + repeated
        failures = tuple(
            WriteFailure(key, outcome.reason, outcome.transient)
            for key, outcome in outcomes.items()
            if outcome.status >= 300 and outcome.status != _CONFLICT
        )
        return WriteReport(written, len(refused) - repeated, failures)

    def _records(self, tenant: str, part: pa.Table) -> Iterator[_Record]:
        routing = self._layout.routing(tenant)
        columns = [part[name].to_pylist() for name in ("row_key", "version", "live", "hash")]
        for document, key, version, live, digest in zip(
            documents(tenant, part, self._layout.columns), *columns, strict=True
        ):
            buried = not live and not digest
            meta = {"_id": key, "version": version + buried, "version_type": "external" if buried else "external_gte"}
            if routing is not None:
                meta["routing"] = routing
            yield _Record(key, version, buried, json.dumps({"index": meta}), document)

    def _deliver(self, alias: str, records: Sequence[_Record]) -> dict[str, _Outcome]:
        """Send `records`, and again those that the server had no room for; the last outcome of each, by key."""
        outcomes: dict[str, _Outcome] = {}
        waiting = list(records)
        for attempt in range(self._settings.retries + 1):
            if attempt:
                longest = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** (attempt - 1))
                self._pause(longest * random.uniform(0.5, 1.0))
            answered: dict[str, _Outcome] = {}
            try:
                self._send(alias, waiting, answered)
            except TransientStoreError:
                if attempt == self._settings.retries:
                    raise
            outcomes |= answered
            waiting = [record for record in waiting if record.key not in answered or answered[record.key].transient]
            if not waiting:
                return outcomes
        silent = _Outcome(503, f"{STORE} at {self._session.address}: no answer for this record")
        return {record.key: silent for record in waiting} | outcomes

    def _send(self, alias: str, records: Sequence[_Record], answered: dict[str, _Outcome]) -> None:
        """One pass of bulk calls over `records`; `answered` gets the outcomes as they come."""

        def stream(client: OpenSearch) -> None:
            for _, item in streaming_bulk(
                client,
                ((record.action, record.document) for record in records),
                chunk_size=self._settings.bulk_rows,
                max_chunk_bytes=self._settings.bulk_mb << 20,
                raise_on_error=False,
                expand_action_callback=lambda pair: pair,
                index=alias,
                require_alias=True,
                filter_path=_ANSWER,
            ):
                self._read(item["index"], answered)

        self._session.call(stream)

    def _read(self, item: dict[str, Any], answered: dict[str, _Outcome]) -> None:
        status, error = int(item["status"]), item.get("error", {})
        reason = f"{error.get('type')}: {error.get('reason')}"
        if cause := error.get("caused_by", {}).get("reason"):
            reason += f" ({cause})"
        if status == 404:
            raise self._session.error(status, reason)
        answered[item["_id"]] = _Outcome(status, reason if status >= 300 else "")

    def _buried_before(self, tenant: str, refused: Sequence[_Record]) -> int:
        """How many of these refused deletes are in the store already."""
        found = self._stored(tenant, [record.key for record in refused], ["version", "live", "hash"])
        stored = [(found.get(record.key), record.version) for record in refused]
        return sum(
            source is not None and source["version"] == version and not source["live"] and not source["hash"]
            for source, version in stored
        )

    def _stored(self, tenant: str, keys: Sequence[str], fields: list[str]) -> dict[str, dict[str, Any]]:
        """These fields of the documents with these keys, as last written, refreshed or not."""
        index, routing = self._layout.index(tenant), self._layout.routing(tenant)
        params = {"_source_includes": ",".join(fields)} | ({"routing": routing} if routing else {})
        found: dict[str, dict[str, Any]] = {}
        for first in range(0, len(keys), _KEYS_PER_READ):
            read = partial(_mget, index=index, keys=keys[first : first + _KEYS_PER_READ], params=params)
            answer = self._session.call(read)
            for doc in answer["docs"]:
                if error := doc.get("error"):
                    if error["type"] == "index_not_found_exception":
                        return {}
                    raise TransientStoreError(STORE, self._session.address, f"{error['type']}: {error['reason']}")
                if doc["found"]:
                    found[doc["_id"]] = doc["_source"]
        return found


def _mget(client: OpenSearch, index: str, keys: Sequence[str], params: dict[str, str]) -> dict[str, Any]:
    # The client takes out of `params` what it understands.
    answer: dict[str, Any] = client.mget(index=index, body={"ids": list(keys)}, params=dict(params))
    return answer
