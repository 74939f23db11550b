"""The search plane: languages, odd queries, stable pages, highlights."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

import pytest

from recall.planes.conformance.data import UUID_ID, Record, document_table, item
from recall.planes.conformance.filtering import FilterConformance
from recall.planes.conformance.suite import Loop, new_tenant
from recall.planes.conformance.writing import ALL, WriterConformance
from recall.planes.opening import PlaneContext
from recall.ports import SearchHit, SearchQuery, SearchStore, WriteReport
from recall.rows import Caller, Ref, Tombstone
from recall.where import Where

CAFE = "caf\N{LATIN SMALL LETTER E WITH ACUTE}"
HUGE = "lorem ipsum dolor " * 3890 + "needle"
TEXTS = {
    "jwt": "认证系统使用JWT令牌",
    "other": "数据库连接池配置",
    "kana": "データベース設計の基本",
    "hangul": "한국어를 ABC와 함께",
    "latin": "the letters ABC stand for themselves",
    "cafe": f"lunch at the {CAFE}",
    "pump": "a leaking pump in the basement",
    "path": "see some/path/file and C:\\repo\\main.py",
    "uuid": f"ticket {UUID_ID} was closed",
    "number": "work order WO-10023",
    "hyphen": "a foo-bar in a baz",
    "special": "ends with <|endoftext|> today",
    "fox": "config alpha: the quick fox",
    "huge": HUGE,
    "token": "x" * 70_000,
    "letter": "plan B again",
}
# Query → ids that must be among the hits; () means that any list is a good answer.
QUERIES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("认证", ("jwt",)),
    ("令牌 jwt", ("jwt",)),
    ("データベース", ("kana",)),
    ("한국어", ("hangul",)),
    ("ＡＢＣ", ("latin", "hangul")),
    ("abc", ("latin", "hangul")),
    (CAFE, ("cafe",)),
    (unicodedata.normalize("NFD", CAFE), ("cafe",)),
    (CAFE.upper(), ("cafe",)),
    ("pumps", ("pump",)),
    ("PUMPING leaks", ("pump",)),
    ("some/path/file", ("path",)),
    ("C:\\repo", ("path",)),
    ("trailing pump\\", ("pump",)),
    (UUID_ID, ("uuid",)),
    ("WO-10023", ("number",)),
    ('foo-bar:("', ("hyphen",)),
    ("<|endoftext|>", ("special",)),
    ("A OR (B AND", ("letter",)),
    ("needle", ("huge",)),
    ("fox", ("fox",)),
    ("pump^2 +fox -lunch NOT cafe*", ("pump", "fox")),
    ("body:pump AND _id:[* TO *]", ("pump",)),
    ("\"fox\" 'pump' `x`", ("fox", "pump")),
    ("pump " + "filler " * 5000, ("pump",)),
    ("pump " + " ".join(f"w{i}" for i in range(5000)), ("pump",)),
    (" ".join(f"w{i}" for i in range(5000)), ()),
    ("x" * 70_000, ()),
    ("a-" * 3000, ()),
    ("(" * 500, ()),
)
NOTHING = ("", "   ", "\n\t", "the and of", "?!", "😀", "😀🎉 👩‍👩‍👧", "xyzzyplugh", "认识", "*", "*:*", "~", "\\", '"')


class SearchConformance(WriterConformance, FilterConformance):
    def write(self, store: SearchStore, context: PlaneContext, tenant: str, records: Sequence[Record]) -> WriteReport:
        store.prepare(tenant)
        report = store.upsert(tenant, document_table(context.registry, tenant, records))
        store.finish(tenant)
        return report

    async def find(
        self,
        store: SearchStore,
        caller: Caller,
        entities: tuple[str, ...] = ("item",),
        where: Where | None = None,
        *,
        limit: int = ALL,
        timeout_s: float | None = None,
    ) -> list[Ref]:
        query = SearchQuery(caller, entities, "common", limit, where=where)
        return [hit.ref for hit in await store.search(query, timeout_s=timeout_s)]

    @pytest.fixture(scope="class")
    @classmethod
    def library(cls, store: SearchStore, context: PlaneContext) -> str:
        """Tenant that holds `TEXTS`, five more configs without a fox and some other prose."""
        tenant = new_tenant()
        configs = [item(f"config{i}", text=f"config beta {i}: timeouts and retries of service {i}") for i in range(5)]
        cls().write(store, context, tenant, [item(row_id, text=text) for row_id, text in TEXTS.items()] + configs)
        return tenant

    def search(
        self, run: Loop, store: SearchStore, tenant: str, text: str, *, limit: int = 50, offset: int = 0
    ) -> list[SearchHit]:
        return run(store.search(SearchQuery(Caller(tenant), ("item",), text, limit, offset)))

    @pytest.mark.parametrize(("text", "expected"), QUERIES, ids=lambda value: str(value)[:30])
    def test_a_query_finds_what_its_words_say(
        self, text: str, expected: tuple[str, ...], run: Loop, store: SearchStore, library: str
    ) -> None:
        found = [hit.ref.id for hit in self.search(run, store, library, text)]
        assert set(expected) <= set(found)
        assert len(found) == len(set(found))

    @pytest.mark.parametrize("text", NOTHING)
    def test_a_query_without_a_known_word_finds_nothing(
        self, text: str, run: Loop, store: SearchStore, library: str
    ) -> None:
        assert self.search(run, store, library, text) == []

    def test_texts_of_any_size_are_kept_and_counted(self, run: Loop, store: SearchStore, library: str) -> None:
        assert self.count(run, store, library) == len(TEXTS) + 5

    def test_a_rare_exact_word_comes_first(self, run: Loop, store: SearchStore, library: str) -> None:
        assert self.search(run, store, library, "config fox")[0].ref.id == "fox"

    def test_scores_fall_and_a_text_with_more_of_the_query_scores_higher(
        self, run: Loop, store: SearchStore, context: PlaneContext, tenant: str
    ) -> None:
        texts = {"both": "valve gasket here now", "one": "valve lever here now", "none": "crane lever here now"}
        self.write(store, context, tenant, [item(row_id, text=text) for row_id, text in texts.items()])
        hits = self.search(run, store, tenant, "valve gasket")
        assert [hit.ref.id for hit in hits] == ["both", "one"]
        assert hits[0].score > hits[1].score > 0

    def test_pages_of_identical_texts_never_overlap(
        self, run: Loop, store: SearchStore, context: PlaneContext, tenant: str
    ) -> None:
        ids = [f"r{i:02d}" for i in range(30)]
        # Two loads, so that a store with segments has two of them.
        self.write(store, context, tenant, [item(row_id, text="identical words") for row_id in ids[1::2]])
        self.write(store, context, tenant, [item(row_id, text="identical words") for row_id in ids[0::2]])
        for size in (5, 7, 10):
            pages = [self.search(run, store, tenant, "identical", limit=size, offset=at) for at in range(0, 35, size)]
            assert [hit.ref.id for page in pages for hit in page] == ids
            assert all(len(page) <= size for page in pages)

    def test_a_page_is_a_slice_of_the_whole_ranking(
        self, run: Loop, store: SearchStore, context: PlaneContext, tenant: str
    ) -> None:
        texts = ["valve " * (1 + i % 4) + "filler " * (i % 7) for i in range(40)]
        self.write(store, context, tenant, [item(f"r{i:02d}", text=text) for i, text in enumerate(texts)])
        whole = self.search(run, store, tenant, "valve")
        assert [hit.ref for hit in whole] == [h.ref for h in sorted(whole, key=lambda hit: (-hit.score, hit.ref))]
        assert len(whole) == 40
        assert self.search(run, store, tenant, "valve", limit=10, offset=10) == whole[10:20]
        assert self.search(run, store, tenant, "valve", limit=10, offset=35) == whole[35:]
        assert self.search(run, store, tenant, "valve", limit=10, offset=1000) == []

    def test_a_rewritten_text_is_found_by_its_new_words_only(
        self, run: Loop, store: SearchStore, context: PlaneContext, tenant: str
    ) -> None:
        self.write(store, context, tenant, [item("a", 1, text="old valve")])
        self.write(store, context, tenant, [item("a", 7, text="new gasket")])
        assert self.search(run, store, tenant, "valve") == []
        assert [(hit.ref.id, hit.version) for hit in self.search(run, store, tenant, "gasket")] == [("a", 7)]

    def test_deleting_the_best_hits_lets_the_next_ones_in(
        self, run: Loop, store: SearchStore, context: PlaneContext, tenant: str
    ) -> None:
        self.write(store, context, tenant, [item(f"r{i:02d}", text="valve " + "pad " * i) for i in range(40)])
        before = self.search(run, store, tenant, "valve")
        store.delete(tenant, [Tombstone(hit.ref, 2) for hit in before[:20]])
        store.finish(tenant)
        after = self.search(run, store, tenant, "valve", limit=10)
        assert [hit.ref for hit in after] == [hit.ref for hit in before[20:30]]

    @pytest.mark.parametrize(
        ("query", "row_id", "marked"),
        [("pumps", "pump", "<em>pump</em>"), ("认证", "jwt", "认证"), (CAFE, "cafe", f"<em>{CAFE}</em>")],
    )
    def test_highlights_are_marked_pieces_of_the_text(
        self, query: str, row_id: str, marked: str, run: Loop, store: SearchStore, library: str
    ) -> None:
        asked = SearchQuery(Caller(library), ("item",), query, 10, highlight=True)
        hit = next(hit for hit in run(store.search(asked)) if hit.ref.id == row_id)
        assert hit.highlights
        assert any(marked in piece for piece in hit.highlights)
        for piece in hit.highlights:
            assert "<em>" in piece
            assert piece.replace("<em>", "").replace("</em>", "") in TEXTS[row_id]

    def test_highlights_of_a_huge_text_are_short(self, run: Loop, store: SearchStore, library: str) -> None:
        asked = SearchQuery(Caller(library), ("item",), "needle", 10, highlight=True)
        (hit,) = run(store.search(asked))
        assert any("<em>needle</em>" in piece for piece in hit.highlights)
        assert sum(map(len, hit.highlights)) < 2000

    def test_without_being_asked_there_are_no_highlights(self, run: Loop, store: SearchStore, library: str) -> None:
        assert {hit.highlights for hit in self.search(run, store, library, "pump")} == {()}
