"""`recall import` on files of every kind, good and bad."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines import importing
from pipelines.importing import Imported, ImportSummary, run_import
from recall.errors import ConfigError
from recall.planes.memory_rows import MemoryRows
from recall.planes.opening import plane_context
from recall.registry import Registry
from recall.rows import Caller, Row
from recall.settings import Settings

ENTITIES = {
    "entities": {
        "note": {
            "columns": {
                "title": "string",
                "year": {"type": "int", "filterable": True},
                "tags": "strings",
                "extra": "json",
                "site": "string",
            },
            "edges": [{"field": "site", "rel": "AT", "target": "site"}],
            "embed": {"fields": ["title"]},
        },
        "site": {"columns": {"name": "string"}},
        "event": {"columns": {"id": "int", "name": "string", "at": "datetime"}, "version": "at"},
    }
}


class Desk:
    """An import into rows in memory that outlive one run."""

    def __init__(self, folder: Path, entities: object = ENTITIES) -> None:
        self.folder = folder
        self.registry = Registry.parse(entities)
        self.settings = Settings(data_dir=str(folder / "data"))
        self.rows = MemoryRows(plane_context(self.settings, self.registry))

    def write(self, name: str, content: str | bytes) -> str:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    def jsonl(self, name: str, *rows: object) -> str:
        return self.write(name, "".join(json.dumps(row) + "\n" for row in rows))

    def run(self, *sources: str, tenant: str = "t") -> ImportSummary:
        return run_import(self.settings, self.registry, tenant, sources)

    def get(self, entity: str, *ids: str, tenant: str = "t") -> dict[str, Row]:
        return asyncio.run(self.rows.get_many(Caller(tenant), entity, ids))

    def letters(self, summary: ImportSummary) -> list[dict[str, object]]:
        assert summary.dead_letters
        return [json.loads(line) for line in Path(summary.dead_letters).read_text().splitlines()]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    desk = Desk(tmp_path)
    monkeypatch.setattr(importing, "open_rows", lambda *_: desk.rows)
    return desk


def test_the_stem_of_a_file_is_its_entity_and_values_are_typed(desk: Desk) -> None:
    path = desk.jsonl("note.jsonl", {"id": "a", "title": "T", "year": 1999, "tags": ["x"], "extra": {"k": [1]}})
    summary = desk.run(path)
    assert (summary.rows, summary.written, summary.failed) == (1, 1, 0)
    row = desk.get("note", "a")["a"]
    assert row.values == {"id": "a", "title": "T", "year": 1999, "tags": ["x"], "extra": {"k": [1]}, "site": None}
    assert summary.dead_letters is None


def test_lines_end_at_line_feed_only(desk: Desk) -> None:
    text = json.dumps({"id": "a", "title": "one\u2028two\u0085three"}, ensure_ascii=False)
    summary = desk.run(desk.write("note.jsonl", f"\ufeff{text}\r\n\n"))
    assert (summary.rows, summary.failed) == (1, 0)
    assert desk.get("note", "a")["a"].values["title"] == "one\u2028two\u0085three"


def test_bad_rows_become_dead_letters_and_the_rest_goes_on(desk: Desk) -> None:
    bad = [
        b'{"id": "b", "year": "nineteen"}',
        b'{"title": "no id"}',
        b'{"id": ""}',
        b'{"id": true}',
        json.dumps({"id": "x" * 1025}).encode(),
        b'{"id": "nul\\u0000"}',
        b"{not json",
        b"[1]",
        b'{"id": "utf", "title": "\xff"}',
        b'{"id": "deep", "extra": ' + b"[" * 100_000 + b"}",
    ]
    lines = [b'{"id": "first"}', *bad, b'{"id": "last"}']
    summary = desk.run(desk.write("note.jsonl", b"\n".join(lines)))
    assert (summary.rows, summary.written, summary.failed) == (12, 2, 10)
    assert set(desk.get("note", "first", "last")) == {"first", "last"}
    letters = desk.letters(summary)
    assert [letter["row"] for letter in letters] == list(range(2, 12))
    reasons = " | ".join(str(letter["reason"]) for letter in letters)
    for expected in ("'year'", "no id", "bool", "1024 bytes", "NUL", "not JSON", "JSON object", "invalid UTF-8"):
        assert expected in reasons, expected
    assert all(letter["file"].endswith("note.jsonl") and letter["raw"] for letter in letters)


def test_nul_and_lone_surrogates_are_cleaned_and_counted(desk: Desk) -> None:
    path = desk.write(
        "note.jsonl", '{"id": "a", "title": "a\\u0000b\\ud800x", "extra": {"k": "\\udfff"}}\n{"id": "b"}\n'
    )
    summary = desk.run(path)
    assert (summary.written, summary.cleaned, summary.failed) == (2, 1, 0)
    assert desk.get("note", "a")["a"].values["title"] == "ab\ufffdx"
    assert desk.get("note", "a")["a"].values["extra"] == {"k": "\ufffd"}


def test_composing_characters_is_no_cleaning(desk: Desk) -> None:
    summary = desk.run(desk.jsonl("note.jsonl", {"id": "cafe\u0301", "title": "cafe\u0301"}))
    assert (summary.written, summary.cleaned) == (1, 0)
    assert desk.get("note", "caf\u00e9")["caf\u00e9"].values["title"] == "caf\u00e9"


def test_whole_numbers_and_strings_are_the_same_id(desk: Desk) -> None:
    desk.run(desk.jsonl("note.jsonl", {"id": 7, "title": "number", "site": 5}))
    summary = desk.run(desk.jsonl("b/note.jsonl", {"id": "7", "title": "text", "site": "5"}))
    assert summary.written == 1
    row = desk.get("note", "7")["7"]
    assert (row.values["id"], row.values["title"], row.values["site"]) == ("7", "text", "5")


def test_an_int_key_takes_digits_and_nothing_else(desk: Desk) -> None:
    path = desk.write("event.csv", "id,name,at\n3,a,2026-01-01\n03,b,2026-01-01\nx,c,2026-01-01\n")
    summary = desk.run(path)
    assert (summary.written, summary.failed) == (1, 2)
    assert desk.get("event", "3")["3"].values["id"] == 3


def test_csv_is_typed_by_the_registry(desk: Desk) -> None:
    content = 'id,title,year,tags,extra\na,"two\nlines",1999,"[""x""]","{""k"": 1}"\nb,007,,,\nc,t,x,,\nd,short\n'
    summary = desk.run(desk.write("note.csv", content))
    assert (summary.rows, summary.written, summary.failed) == (4, 2, 2)
    assert desk.get("note", "a")["a"].values["tags"] == ["x"]
    row = desk.get("note", "b")["b"].values
    assert (row["title"], row["year"], row["extra"]) == ("007", None, None)


def test_csv_with_bytes_that_are_no_utf8_loses_one_row(desk: Desk) -> None:
    summary = desk.run(desk.write("note.csv", b"id,title\na,ok\nb,\xff\nc,ok\n"))
    assert (summary.written, summary.failed) == (2, 1)
    assert desk.letters(summary)[0]["reason"] == "invalid UTF-8"


def test_parquet_with_a_column_null_in_one_row_group(desk: Desk) -> None:
    path = desk.folder / "note.parquet"
    schema = pa.schema([("id", pa.int64()), ("title", pa.string()), ("other", pa.float64())])
    with pq.ParquetWriter(path, schema) as writer:
        writer.write_table(pa.table({"id": [1, 2], "title": pa.nulls(2), "other": [0.5, 0.5]}, schema=schema))
        writer.write_table(pa.table({"id": [3], "title": ["three"], "other": [0.5]}, schema=schema))
    nulls = desk.folder / "more" / "note.parquet"
    nulls.parent.mkdir()
    pq.write_table(pa.table({"id": ["4"], "title": pa.nulls(1)}), nulls)
    summary = desk.run(str(path), str(nulls))
    assert (summary.written, summary.failed) == (4, 0)
    assert [desk.get("note", i)[i].values["title"] for i in "1234"] == [None, None, "three", None]
    assert summary.ignored == ("note.other",)


def test_undeclared_columns_are_ignored_and_named_once(desk: Desk) -> None:
    summary = desk.run(desk.jsonl("note.jsonl", {"id": "a", "zip": 1}, {"id": "b", "zip": 2, "age": 3}))
    assert summary.ignored == ("note.age", "note.zip")
    assert summary.line().count("zip") == 1


def test_an_empty_file_is_no_error(desk: Desk) -> None:
    pq.write_table(pa.table({"id": pa.array([], pa.string())}), desk.folder / "note.parquet")
    for path in (desk.write("note.jsonl", ""), desk.write("note.csv", ""), str(desk.folder / "note.parquet")):
        summary = desk.run(path)
        assert (summary.rows, summary.failed) == (0, 0)


def test_a_file_that_is_not_what_it_says_is_one_dead_letter(desk: Desk) -> None:
    summary = desk.run(desk.write("note.parquet", "no parquet"), desk.jsonl("site.jsonl", {"id": "s"}))
    assert (summary.written, summary.failed) == (1, 1)


@pytest.mark.parametrize("between", [0, importing.BATCH_ROWS])
def test_of_two_rows_with_one_id_the_last_wins(desk: Desk, between: int) -> None:
    rows = [{"id": "a", "title": "old"}, *({"id": f"x{i}"} for i in range(between)), {"id": "a", "title": "new"}]
    summary = desk.run(desk.jsonl("note.jsonl", *rows))
    assert (summary.rows, summary.duplicates, summary.failed) == (between + 2, 1, 0)
    assert desk.get("note", "a")["a"].values["title"] == "new"


@pytest.mark.parametrize("between", [0, importing.BATCH_ROWS])
def test_of_two_rows_with_one_id_the_higher_version_wins(desk: Desk, between: int) -> None:
    filler = ({"id": 100 + i, "at": "2026-01-01"} for i in range(between))
    new, old = {"id": 1, "name": "new", "at": "2026-01-02T00:00:01Z"}, {"id": 1, "name": "old", "at": "2026-01-02"}
    summary = desk.run(desk.jsonl("event.jsonl", new, *filler, old))
    assert summary.duplicates == 1
    row = desk.get("event", "1")["1"]
    assert (row.values["name"], row.version) == ("new", 1_767_312_001_000_000)


def test_importing_the_same_file_again_writes_nothing(desk: Desk) -> None:
    paths = [
        desk.jsonl("note.jsonl", *({"id": str(i), "title": "t", "year": i} for i in range(50))),
        desk.jsonl("event.jsonl", *({"id": i, "name": "n", "at": "2026-01-01"} for i in range(50))),
    ]
    first, versions = desk.run(*paths), desk.get("note", "3")["3"].version
    second = desk.run(*paths)
    assert (first.written, first.unchanged) == (100, 0)
    assert (second.written, second.unchanged) == (0, 100)
    assert desk.get("note", "3")["3"].version == versions


def test_entity_equals_path_globs_folders_and_gzip(desk: Desk) -> None:
    desk.jsonl("in/part-1.jsonl", {"id": "a"})
    desk.write("in/part-2.jsonl.gz", gzip.compress(b'{"id": "b"}\n'))
    desk.write("in/readme.txt", "not data")
    assert desk.run(f"note={desk.folder}/in").written == 2
    assert desk.run(f"note={desk.folder}/in/*.jsonl", tenant="u").written == 1


def test_an_unknown_stem_says_how_to_name_the_entity(desk: Desk) -> None:
    with pytest.raises(ConfigError, match="entity=path"):
        desk.run(desk.jsonl("unknown.jsonl", {"id": "a"}))
    with pytest.raises(ConfigError, match="no such file"):
        desk.run(str(desk.folder / "absent.jsonl"))
    with pytest.raises(ConfigError, match="nothing to import"):
        desk.run()


def test_rows_of_another_tenant_are_refused(desk: Desk) -> None:
    path = desk.jsonl("note.jsonl", {"id": "a", "tenant": "t"}, {"id": "b", "tenant": "other"}, {"id": "c"})
    summary = desk.run(path)
    assert (summary.written, summary.failed, summary.ignored) == (2, 1, ())
    assert desk.get("note", "b", tenant="other") == {}


def test_sources_of_the_entity_file_rename_and_fill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = {"entity": "note", "files": "corpus.jsonl", "rename": {"_id": "id", "text": "title"}}
    desk = Desk(tmp_path, ENTITIES | {"sources": [source | {"defaults": {"year": 2000}}]})
    monkeypatch.setattr(importing, "open_rows", lambda *_: desk.rows)
    desk.settings = desk.settings.model_copy(update={"entities": str(tmp_path / "here" / "entities.yaml")})
    desk.jsonl("here/corpus.jsonl", {"_id": "a", "text": "T"}, {"_id": "b", "year": 1}, {"_id": "c", "year": None})
    desk.jsonl("there/corpus.jsonl", {"_id": "d"})
    assert desk.run().written == 3
    assert [desk.get("note", i)[i].values["year"] for i in "abc"] == [2000, 1, 2000]
    assert desk.get("note", "a")["a"].values["title"] == "T"
    assert desk.run(str(tmp_path / "there")).written == 1
    assert desk.run(str(tmp_path / "there" / "corpus.jsonl")).unchanged == 1


def conversations(paths: Sequence[Path]) -> Iterator[tuple[str | None, str, dict[str, object]]]:
    yield "conv-1", "note", {"id": "a", "title": paths[0].name}
    yield None, "note", {"id": "a", "title": "own"}
    yield "no tenant!", "note", {"id": "b"}
    yield None, "nothing", {"id": "b"}


def test_a_reader_names_tenants_and_entities(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = {"reader": "test_importing:conversations", "files": ["x.json"]}
    desk = Desk(tmp_path, ENTITIES | {"sources": [source]})
    monkeypatch.setattr(importing, "open_rows", lambda *_: desk.rows)
    desk.write("x.json", "{}")
    summary = desk.run(str(tmp_path))
    assert (summary.written, summary.failed, summary.tenants) == (2, 2, ("conv-1", "t"))
    assert desk.get("note", "a", tenant="conv-1")["a"].values["title"] == "x.json"
    assert desk.get("note", "a")["a"].values["title"] == "own"


def test_a_reader_that_cannot_be_imported_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(tmp_path, ENTITIES | {"sources": [{"reader": "test_importing:absent", "files": "x.json"}]})
    monkeypatch.setattr(importing, "open_rows", lambda *_: desk.rows)
    desk.write("x.json", "{}")
    with pytest.raises(ConfigError, match="test_importing:absent"):
        desk.run(str(tmp_path))


def test_progress_counts_rows(desk: Desk) -> None:
    seen: list[Imported] = []
    path = desk.jsonl("note.jsonl", *({"id": str(i)} for i in range(importing.BATCH_ROWS + 5)))
    run_import(desk.settings, desk.registry, "t", [path], on_progress=seen.append)
    assert [step.rows for step in seen] == [importing.BATCH_ROWS, importing.BATCH_ROWS + 5]
