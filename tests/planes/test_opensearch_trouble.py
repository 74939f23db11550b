"""OpenSearch in trouble, on real servers: killed, slow, silent, overloaded, refusing, half loaded, half upgraded."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from opensearchpy import OpenSearch
from servers.availability import CannotStart, unavailable
from servers.opensearch import OpenSearchNode, opensearch_node
from servers.rewriting import rewriting_proxy
from standins.line import Line

from recall.errors import ConfigError, IndexMissing, TerminalStoreError, TransientStoreError
from recall.keys import store_key
from recall.planes.conformance.corpus import parsed
from recall.planes.conformance.data import DIM, Record, conformance_registry, document_table, item
from recall.planes.opening import ModelId, PlaneContext
from recall.planes.opensearch import OpenSearchSearch
from recall.planes.opensearch_schema import LONGEST
from recall.ports import SearchHit, SearchQuery, WriteReport
from recall.registry import Registry
from recall.rows import Caller, Ref, Tombstone
from recall.settings import OpenSearchSettings
from recall.where import matches

pytestmark = pytest.mark.server
REGISTRY = conformance_registry()
# How far beyond its deadline an answer may come on a busy machine.
SLACK_S = 3.0
_OPENED: list[OpenSearchSearch] = []


@pytest.fixture(scope="module", params=[2, 3], ids=["opensearch-2", "opensearch-3"])
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenSearchNode]:
    try:
        with opensearch_node(request.param, tmp_path_factory.mktemp("opensearch")) as node:
            yield node
    except CannotStart as reason:
        unavailable(reason)


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """Closes what a test has opened."""
    yield
    while _OPENED:
        asyncio.run(_OPENED.pop().close())


@pytest.fixture
def client(node: OpenSearchNode) -> Iterator[OpenSearch]:
    with OpenSearch([node.url], timeout=60) as client:
        yield client


@pytest.fixture
def prefix() -> str:
    return f"t{uuid.uuid4().hex[:10]}"


@pytest.fixture
def line(node: OpenSearchNode) -> Iterator[Line]:
    line = Line(node.port)
    yield line
    line.cut()


def opened(url: str, index: str, registry: Registry = REGISTRY, **settings: Any) -> OpenSearchSearch:
    chosen = OpenSearchSettings(kind="opensearch", hosts=(url,), index=index, replicas=0, **settings)
    store = OpenSearchSearch(chosen, PlaneContext(registry, ModelId("conformance", DIM), Path()))
    _OPENED.append(store)
    return store


def put(store: OpenSearchSearch, tenant: str, records: Sequence[Record], registry: Registry = REGISTRY) -> WriteReport:
    return store.upsert(tenant, document_table(registry, tenant, records))


def load(store: OpenSearchSearch, tenant: str, records: Sequence[Record], registry: Registry = REGISTRY) -> None:
    store.prepare(tenant)
    assert put(store, tenant, records, registry).written == len(records)
    store.finish(tenant)


def asked(tenant: str, text: str = "common", limit: int = 100, offset: int = 0, **query: Any) -> SearchQuery:
    return SearchQuery(Caller(tenant), ("item",), text, limit, offset, **query)


def found(store: OpenSearchSearch, query: SearchQuery, timeout_s: float | None = 30) -> list[SearchHit]:
    return asyncio.run(_once(store, query, timeout_s))


async def _once(store: OpenSearchSearch, query: SearchQuery, timeout_s: float | None) -> list[SearchHit]:
    """One search on a loop of its own, whose client is closed with it."""
    try:
        return await store.search(query, timeout_s=timeout_s)
    finally:
        await store.close()


def ids(hits: Sequence[SearchHit]) -> list[str]:
    return [hit.ref.id for hit in hits]


# ---- killed ----


async def test_nothing_acknowledged_is_lost_when_the_server_is_killed_in_the_middle_of_a_load(
    node: OpenSearchNode, prefix: str
) -> None:
    store = opened(node.url, prefix, retries=1, bulk_rows=100)
    await asyncio.to_thread(store.prepare, "t")
    acknowledged: list[str] = []
    troubles: list[TransientStoreError] = []
    enough = threading.Event()

    def write() -> None:
        for batch in range(60):
            records = [item(f"r{batch:02d}-{i:02d}", title=f"t{batch}") for i in range(50)]
            while True:
                try:
                    report = put(store, "t", records)
                except TransientStoreError as trouble:
                    troubles.append(trouble)
                    time.sleep(0.2)
                    continue
                failed = {failure.key for failure in report.failures}
                assert all(failure.transient for failure in report.failures)
                if not failed:
                    break
            acknowledged.extend(record.ref.id for record in records)
            if batch == 10:
                enough.set()

    writer = asyncio.create_task(asyncio.to_thread(write))
    assert await asyncio.to_thread(enough.wait, 60)
    await asyncio.to_thread(node.kill)
    before = list(acknowledged)
    await asyncio.to_thread(node.restart)
    await writer
    assert len(before) < len(acknowledged) == 3000
    await asyncio.to_thread(store.finish, "t")
    assert await store.count("t", timeout_s=30) == {"item": 3000}
    keys = [store_key("t", "item", row_id) for row_id in acknowledged]
    assert len(await asyncio.to_thread(store.hashes, "t", keys)) == 3000
    assert all(node.url.rpartition("/")[2] in str(trouble) for trouble in troubles)
    await store.close()


async def test_queries_fail_softly_while_the_server_is_killed_and_go_on_when_it_is_back(
    node: OpenSearchNode, prefix: str
) -> None:
    store = opened(node.url, prefix)
    await asyncio.to_thread(load, store, "t", [item(f"r{i}") for i in range(200)])
    outcomes: list[int | None] = []
    answered, failed, healed = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def query_until_healed() -> None:
        while not healed.is_set():
            started = time.monotonic()
            try:
                outcomes.append(len(await store.search(asked("t", limit=200), timeout_s=2)))
                (healed if failed.is_set() else answered).set()
            except TransientStoreError:
                outcomes.append(None)
                failed.set()
                await asyncio.sleep(0.05)
            assert time.monotonic() - started < 2 + SLACK_S

    readers = asyncio.gather(*(query_until_healed() for _ in range(4)))
    await asyncio.wait_for(answered.wait(), 60)
    await asyncio.to_thread(node.kill)
    await asyncio.wait_for(failed.wait(), 60)
    await asyncio.to_thread(node.restart)
    await asyncio.wait_for(readers, 60)
    # All rows or an error; never some of the rows.
    assert set(outcomes) == {200, None}
    await store.close()


# ---- slow and silent ----


async def test_a_slow_server_is_waited_for_as_long_as_the_deadline_says(
    node: OpenSearchNode, line: Line, prefix: str
) -> None:
    await asyncio.to_thread(load, opened(node.url, prefix), "t", [item("a")])
    store = opened(f"http://127.0.0.1:{line.port}", prefix)
    with line.delayed(2.0):
        started = time.monotonic()
        with pytest.raises(TransientStoreError, match=r"within 0\.5 s"):
            await store.search(asked("t"), timeout_s=0.5)
        assert time.monotonic() - started < 0.5 + SLACK_S
        assert ids(await store.search(asked("t"), timeout_s=30)) == ["a"]
    await store.close()


async def test_a_connection_that_falls_silent_is_given_up_at_the_deadline(
    node: OpenSearchNode, line: Line, prefix: str
) -> None:
    await asyncio.to_thread(load, opened(node.url, prefix), "t", [item("a")])
    store = opened(f"http://127.0.0.1:{line.port}", prefix, write_timeout_ms=1000, retries=1, timeout_ms=1000)
    assert ids(await store.search(asked("t"), timeout_s=10)) == ["a"]
    with line.stalled():
        for wait in (lambda: store.search(asked("t"), timeout_s=0.5), lambda: store.count("t"), store.health):
            started = time.monotonic()
            with pytest.raises(TransientStoreError, match=str(line.port)):
                await wait()
            assert time.monotonic() - started < 1 + SLACK_S
        started = time.monotonic()
        with pytest.raises(TransientStoreError):
            await asyncio.to_thread(put, store, "t", [item("b")])
        assert time.monotonic() - started < 5 + SLACK_S
    assert ids(await store.search(asked("t"), timeout_s=10)) == ["a"]
    assert (await asyncio.to_thread(put, store, "t", [item("b")])).written == 1
    await store.close()


def test_a_server_that_is_not_there_is_named_with_what_to_do(prefix: str, line: Line) -> None:
    line.cut()
    store = opened(f"http://127.0.0.1:{line.port}", prefix)
    with pytest.raises(TransientStoreError) as failure:
        found(store, asked("t"))
    assert failure.value.address == f"127.0.0.1:{line.port}"
    assert "planes.search.hosts" in failure.value.detail
    with pytest.raises(TransientStoreError, match="start the cluster"):
        opened(f"http://127.0.0.1:{line.port}", prefix).prepare("t")


# ---- refusals ----


class Congestion:
    """Answers of bulk calls in which 30 % of the items were turned away with 429, and one row is never accepted."""

    def __init__(self, never: str) -> None:
        self._never = never
        self._tick = 0
        self.sent: list[int] = []

    def __call__(self, method: str, path: str, body: bytes, status: int, answer: bytes) -> tuple[int, bytes]:
        if "_bulk" not in path:
            return status, answer
        parsed_answer = json.loads(answer)
        self.sent.append(len(parsed_answer["items"]))
        for entry in parsed_answer["items"]:
            self._tick += 1
            done = entry["index"]
            if done["_id"] == self._never:
                done |= {"status": 400, "error": {"type": "mapper_parsing_exception", "reason": "failed to parse"}}
            elif self._tick % 10 < 3:
                done |= {"status": 429, "error": {"type": "rejected_execution_exception", "reason": "queue is full"}}
        return status, json.dumps(parsed_answer).encode()


def test_only_items_that_were_turned_away_are_sent_again_and_a_wrong_one_is_reported(
    node: OpenSearchNode, prefix: str
) -> None:
    never = store_key("t", "item", "r0042")
    congestion = Congestion(never)
    with rewriting_proxy(node.port, congestion) as url:
        store = opened(url, prefix, bulk_rows=500)
        store.prepare("t")
        report = put(store, "t", [item(f"r{i:04d}") for i in range(1000)])
    assert report.written + len(report.failures) == 1000
    wrong = [failure for failure in report.failures if not failure.transient]
    assert [(failure.key, failure.reason) for failure in wrong] == [
        (never, "mapper_parsing_exception: failed to parse")
    ]
    # Five attempts turn 0.3 ** 5 of the items away.
    assert len(report.failures) < 20
    assert all("queue is full" in failure.reason for failure in report.failures if failure.transient)
    assert congestion.sent[0] == 500
    assert sum(congestion.sent) < 1600


def test_an_answer_that_was_lost_counts_as_nothing_and_the_repetition_changes_nothing(
    node: OpenSearchNode, prefix: str
) -> None:
    lost = iter([True])

    def lose(method: str, path: str, body: bytes, status: int, answer: bytes) -> tuple[int, bytes]:
        if "_bulk" in path and next(lost, False):
            return 502, b"bad gateway"
        return status, answer

    with rewriting_proxy(node.port, lose) as url:
        store = opened(url, prefix)
        store.prepare("t")
        assert put(store, "t", [item("a", 3), item("b", 1)]) == WriteReport(written=2)
        lost = iter([True])
        assert store.delete("t", [Tombstone(Ref("item", "a"), 3)]) == WriteReport(written=1)
        store.finish("t")
    assert ids(found(opened(node.url, prefix), asked("t"))) == ["b"]


def test_repeating_a_delete_is_no_stale_write(node: OpenSearchNode, prefix: str) -> None:
    store = opened(node.url, prefix)
    load(store, "t", [item("a", 1)])
    delete = [Tombstone(Ref("item", "a"), 2), Tombstone(Ref("item", "unknown"), 2)]
    assert store.delete("t", delete) == WriteReport(written=2)
    assert store.delete("t", delete) == WriteReport(written=2)
    assert store.delete("t", [Tombstone(Ref("item", "a"), 1)]) == WriteReport(stale=1)


def test_versions_that_no_server_accepts_are_permanent_failures(node: OpenSearchNode, prefix: str) -> None:
    store = opened(node.url, prefix)
    store.prepare("t")
    report = put(store, "t", [item("a", -1), item("b", 2**63 - 1), item("c", 2**63 - 2), item("d", 0)])
    assert report.written == 2
    assert {failure.key for failure in report.failures} == {store_key("t", "item", row_id) for row_id in ("a", "b")}
    assert not any(failure.transient for failure in report.failures)


@pytest.mark.parametrize("status", [401, 403])
def test_a_wrong_password_is_terminal_and_says_where_to_look(status: int, node: OpenSearchNode, prefix: str) -> None:
    with rewriting_proxy(node.port, lambda *_: (status, b'{"error": "Unauthorized"}')) as url:
        store = opened(url, prefix, user="someone", password_env="PATH")
        for attempt in (lambda: store.prepare("t"), lambda: found(opened(url, prefix), asked("t"))):
            with pytest.raises(TerminalStoreError, match=str(status)) as failure:
                attempt()
            assert "password_env" in failure.value.detail
            assert failure.value.address == url.removeprefix("http://")


def test_a_server_that_does_not_speak_tls_is_terminal(node: OpenSearchNode, prefix: str) -> None:
    url = node.url.replace("http:", "https:")
    for attempt in (lambda: opened(url, prefix).prepare("t"), lambda: found(opened(url, prefix), asked("t"))):
        with pytest.raises(TerminalStoreError, match="ca_certs"):
            attempt()


def test_a_password_that_is_not_set_is_named(node: OpenSearchNode, prefix: str) -> None:
    store = opened(node.url, prefix, user="someone", password_env="RECALL_TEST_NOT_SET")
    with pytest.raises(ConfigError, match="RECALL_TEST_NOT_SET"):
        store.prepare("t")


@pytest.mark.parametrize(
    ("status", "answer", "error"),
    [
        (429, {"error": {"type": "circuit_breaking_exception", "reason": "too large"}}, TransientStoreError),
        (503, {"error": {"type": "search_phase_execution_exception", "reason": "all shards"}}, TransientStoreError),
        (400, {"error": {"type": "parsing_exception", "reason": "unknown"}}, TerminalStoreError),
        (200, {"timed_out": True, "_shards": {"total": 1, "failed": 0}}, TransientStoreError),
        (200, {"timed_out": False, "_shards": {"total": 2, "failed": 1}}, TransientStoreError),
        (200, "<html>not json", TransientStoreError),
    ],
    ids=str,
)
def test_half_an_answer_is_an_error(
    status: int, answer: object, error: type[Exception], node: OpenSearchNode, prefix: str
) -> None:
    load(opened(node.url, prefix), "t", [item("a")])
    body = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()

    def rewrite(method: str, path: str, sent: bytes, real: int, content: bytes) -> tuple[int, bytes]:
        return (status, body) if "_search" in path else (real, content)

    with rewriting_proxy(node.port, rewrite) as url, pytest.raises(error):
        found(opened(url, prefix), asked("t"))


def test_marker_scores_are_refused_and_never_ranked(node: OpenSearchNode, prefix: str) -> None:
    load(opened(node.url, prefix), "t", [item("a"), item("b")])

    def mark(method: str, path: str, sent: bytes, status: int, answer: bytes) -> tuple[int, bytes]:
        if "_search" not in path:
            return status, answer
        changed = json.loads(answer)
        changed["hits"]["hits"][0]["sort"][0] = -9549512000
        return status, json.dumps(changed).encode()

    with rewriting_proxy(node.port, mark) as url, pytest.raises(TerminalStoreError, match="no BM25 score"):
        found(opened(url, prefix), asked("t"))


# ---- missing and half loaded ----


def test_an_index_that_vanished_is_missing_and_comes_back_with_the_next_load(
    node: OpenSearchNode, client: OpenSearch, prefix: str
) -> None:
    store = opened(node.url, prefix)
    load(store, "t", [item("a")])
    client.indices.delete(index=f"{prefix}-*")
    with pytest.raises(IndexMissing, match="recall backfill --tenant t"):
        found(opened(node.url, prefix), asked("t"))
    with pytest.raises(IndexMissing):
        put(store, "t", [item("b")])
    assert not client.indices.exists(index=f"{prefix}-*", params={"allow_no_indices": "false"})
    load(store, "t", [item("b")])
    assert ids(found(store, asked("t"))) == ["b"]


def test_a_load_that_was_never_finished_shows_nothing_and_is_taken_up_by_the_next(
    node: OpenSearchNode, client: OpenSearch, prefix: str
) -> None:
    first = opened(node.url, prefix)
    first.prepare("t")
    put(first, "t", [item("a")])
    assert _refresh_interval(client, prefix) == ["-1"]
    with pytest.raises(IndexMissing):
        found(opened(node.url, prefix), asked("t"))
    second = opened(node.url, prefix)
    keys = [store_key("t", "item", row_id) for row_id in ("a", "b")]
    assert list(second.hashes("t", keys)) == keys[:1]
    load(second, "t", [item("b")])
    assert _refresh_interval(client, prefix) == ["1s"]
    assert ids(found(second, asked("t"))) == ["a", "b"]


def _refresh_interval(client: OpenSearch, prefix: str) -> list[str]:
    stored = client.indices.get_settings(index=f"{prefix}-*", name="index.refresh_interval")
    return [entry["settings"]["index"]["refresh_interval"] for entry in stored.values()]


def _with_column(name: str) -> Registry:
    columns = {"body": "string", "title": {"type": "string", "filterable": True}}
    columns[name] = {"type": "string", "filterable": True}
    return Registry.parse({"entities": {"item": {"columns": columns, "search": {"fields": ["body"]}}}})


@pytest.mark.parametrize("isolation", ["shared", "dedicated"])
def test_a_new_version_takes_over_when_it_is_finished_and_all_but_the_last_one_go(
    isolation: str, node: OpenSearchNode, client: OpenSearch, prefix: str
) -> None:
    versions = [_with_column(f"extra{number}") for number in range(3)]
    first, second, third = (lambda r=r: opened(node.url, prefix, r, isolation=isolation) for r in versions)
    load(first(), "t", [item("old")], versions[0])
    (oldest,) = client.indices.get(index=f"{prefix}-*")
    late = second()
    late.prepare("t")
    put(late, "t", [item("new")], versions[1])
    # Until then the old one answers, but for filters that it would not understand.
    assert ids(found(second(), asked("t"))) == ["old"]
    where = parsed({"extra1": {"isnull": True}}, versions[1], ["item"])
    with pytest.raises(IndexMissing, match="extra1"):
        found(second(), asked("t", where=where))
    late.finish("t")
    assert ids(found(second(), asked("t", where=where))) == ["new"]
    assert ids(found(first(), asked("t"))) == ["old"]
    load(third(), "t", [item("newest")], versions[2])
    assert ids(found(third(), asked("t"))) == ["newest"]
    left = list(client.indices.get(index=f"{prefix}-*"))
    assert len(left) == 2
    assert oldest not in left
    (current,) = client.indices.get_alias(name=f"{prefix}@t")
    assert current in left


def test_a_version_that_other_tenants_still_read_is_kept(node: OpenSearchNode, client: OpenSearch, prefix: str) -> None:
    versions = [_with_column(f"extra{number}") for number in range(3)]
    for tenant in ("a", "b"):
        load(opened(node.url, prefix, versions[0]), tenant, [item(f"of-{tenant}")], versions[0])
    for registry in versions[1:]:
        load(opened(node.url, prefix, registry), "a", [item("new")], registry)
    assert len(client.indices.get(index=f"{prefix}-*")) == 3
    assert ids(found(opened(node.url, prefix, versions[2]), asked("b"))) == ["of-b"]


def test_a_tenant_may_move_to_an_index_of_its_own(node: OpenSearchNode, client: OpenSearch, prefix: str) -> None:
    load(opened(node.url, prefix), "T-1", [item("shared")])
    own = opened(node.url, prefix, tenants={"T-1": "dedicated"})
    load(own, "T-1", [item("a"), item("b")])
    assert ids(found(own, asked("T-1"))) == ["a", "b"]
    assert ids(found(opened(node.url, prefix), asked("T-1"))) == ["a", "b"]
    load(opened(node.url, prefix, isolation="dedicated"), "t-1", [item("lower case")])
    assert ids(found(opened(node.url, prefix), asked("T-1"))) == ["a", "b"]


# ---- filters and pages at their limits ----


def test_filters_of_half_a_percent_and_a_lonely_tenant_lose_nothing(node: OpenSearchNode, prefix: str) -> None:
    store = opened(node.url, prefix)
    crowd = [item(f"c{i:05d}", status="rare" if i % 200 == 0 else "often", title="same") for i in range(10_000)]
    load(store, "crowd", crowd)
    load(store, "lonely", [item("same", title="same", status="rare")])
    rare = parsed({"status": "rare"}, REGISTRY, ["item"])
    assert ids(found(store, asked("lonely", where=rare))) == ["same"]
    store = opened(node.url, prefix)
    assert ids(found(store, asked("crowd", where=rare))) == [r.ref.id for r in crowd if r.values["status"] == "rare"]


LONG = "x" * 70_000
AWKWARD = (
    "a*b?c",
    "a?b*c",
    "back\\slash",
    "50%_off",
    "ß",
    "ẞ",
    "İstanbul",
    "ıI",
    "ſs",
    "K",
    "Σσς",
    "a.b[c]{2}(d)|e@f&g~h#i<1-5>\"'",
)


async def test_filters_are_exact_on_long_values_awkward_patterns_and_any_case(
    node: OpenSearchNode, prefix: str
) -> None:
    store = opened(node.url, prefix)
    exact = "y" * LONGEST
    values = [LONG, f"{LONG}y", "x" * 9000, "系" * 12_000, exact, f"{exact}y", "y" * (LONGEST - 1), *AWKWARD, "", None]
    records = [item(f"r{i:02d}", title=value) for i, value in enumerate(values)]
    await asyncio.to_thread(load, store, "t", records)
    escaped = [text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") for text in AWKWARD]
    operands = [LONG, "x" * 9000, exact, f"{exact}y", "y" * (LONGEST - 1), "x", "y", "z"]
    patterns = [*escaped, LONG, "x%", "%y", "%xy", "_" * LONGEST, "x%" + "_" * 30 + "y", "%" + "x" * 300 + "%", "%系%"]
    patterns += ["%a%b%c%", "%" + "_" * 40, "y" * 9000 + "%", "K", "i%", "s_", "%"]
    tests: list[dict[str, object]] = [
        {op: value} for op in ("eq", "ne", "gt", "gte", "lt", "lte") for value in operands
    ]
    tests += [{op: [LONG, "ß", exact]} for op in ("in", "notin")]
    tests += [{op: pattern} for op in ("like", "ilike") for pattern in patterns]
    tests += [{"ilike": pattern.swapcase()} for pattern in escaped]
    for test in tests:
        where = parsed({"title": test}, REGISTRY, ["item"])
        hits = await store.search(asked("t", where=where), timeout_s=60)
        expected = [record.ref.id for record in records if matches(where, record.values)]
        assert ids(hits) == expected, str(test)[:80]
    await store.close()


async def test_pages_beyond_the_window_of_the_server_go_on_where_the_last_one_ended(
    node: OpenSearchNode, prefix: str
) -> None:
    store = opened(node.url, prefix)
    names = [f"r{i:05d}" for i in range(10_250)]
    await asyncio.to_thread(load, store, "t", [item(name) for name in names])
    pages = [await store.search(asked("t", limit=100, offset=at), timeout_s=60) for at in range(9_800, 10_400, 100)]
    assert [hit.ref.id for page in pages for hit in page] == names[9_800:]
    whole = await store.search(asked("t", limit=20_000), timeout_s=60)
    assert ids(whole) == names
    assert ids(await store.search(asked("t", limit=10, offset=50_000), timeout_s=60)) == []
    await store.close()


async def test_scores_of_one_text_do_not_depend_on_its_segment_or_shard(node: OpenSearchNode, prefix: str) -> None:
    store = opened(node.url, prefix, isolation="dedicated", shards=3)
    text = "valve gasket pump crane lever " * 3
    for part in range(3):
        records = [item(f"r{part}{i}", text=text) for i in range(7)]
        await asyncio.to_thread(load, store, "t", [*records, item(f"other{part}", text="pump " * (part + 1))])
    hits = await store.search(asked("t", "lever pump valve crane gasket"), timeout_s=30)
    same = [hit for hit in hits if not hit.ref.id.startswith("other")]
    assert len({hit.score for hit in same}) == 1
    assert ids(same) == sorted(f"r{part}{i}" for part in range(3) for i in range(7))
    await store.close()


async def test_words_are_found_in_any_form_and_marked_where_they_stand(node: OpenSearchNode, prefix: str) -> None:
    store = opened(node.url, prefix)
    texts = {
        "ligature": "the \ufb01rst of\ufb01ce",
        "wide": "ＡＢＣ１２３ in full width",
        "half": "ﾃﾞｰﾀﾍﾞｰｽ in half width",
        "hangul": "ABC와 10시에",
        "german": "Straße nach Süden",
        "greek": "ΟΔΥΣΣΕΥΣ",
        "joined": "see main.py and foo_bar:baz",
        "possessive": "the pump’s valve isn't open",
        "unit": "weighs 5㎏",
    }
    await asyncio.to_thread(load, store, "t", [item(row_id, text=text) for row_id, text in texts.items()])
    for query, row_id, marked in (
        ("first office", "ligature", "<em>\ufb01rst</em>"),
        ("abc123", "wide", "<em>ＡＢＣ１２３</em>"),
        ("データ", "half", "<em>ﾃﾞｰﾀ"),
        ("abc", "hangul", "<em>ABC</em>와"),
        ("10", "hangul", "<em>10</em>시"),
        ("시에", "hangul", "10<em>시에</em>"),
        ("strasse", "german", "<em>Straße</em>"),
        ("su\u0308den", "german", "<em>Süden</em>"),
        ("οδυσσευς", "greek", "<em>ΟΔΥΣΣΕΥΣ</em>"),
        ("main", "joined", "<em>main</em>.py"),
        ("bar", "joined", "foo_<em>bar</em>:baz"),
        ("pump", "possessive", "<em>pump’s</em>"),
        ("5kg", "unit", "<em>5㎏</em>"),
    ):
        hits = await store.search(asked("t", query, highlight=True), timeout_s=30)
        pieces = {hit.ref.id: " ".join(hit.highlights) for hit in hits}
        assert marked in pieces.get(row_id, ""), (query, pieces)
    await store.close()


async def test_sixty_four_readers_hold_no_more_connections_than_configured(
    node: OpenSearchNode, line: Line, prefix: str
) -> None:
    await asyncio.to_thread(load, opened(node.url, prefix), "t", [item("a")])
    store = opened(f"http://127.0.0.1:{line.port}", prefix, pool_size=8)
    answers = await asyncio.gather(*(store.search(asked("t"), timeout_s=30) for _ in range(64)))
    assert all(ids(hits) == ["a"] for hits in answers)
    assert 1 <= line.connections <= 8
    await store.close()
