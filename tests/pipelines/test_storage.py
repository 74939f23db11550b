"""Run folders, dead letters and retries, without Ray."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from pipelines.deadletters import DeadLetters
from pipelines.retries import patiently, write_with_retries
from pipelines.storage import Folder
from recall.errors import TerminalStoreError, TransientStoreError
from recall.ports import WriteFailure, WriteReport
from recall.settings import PipelineSettings, Settings

TABLE = pa.table({"a": [1, 2, 3]})


@pytest.mark.parametrize("form", ["{path}", "file://{path}"])
def test_tables_come_back_from_paths_and_uris(tmp_path: Path, form: str) -> None:
    folder = Folder(form.format(path=tmp_path)) / "run" / "stage"
    assert folder.names() == []
    folder.put_table("part-1.parquet", TABLE)
    assert folder.names() == ["part-1.parquet"]
    assert folder.read_table("part-1.parquet") == TABLE
    assert folder.rows("part-1.parquet") == 3
    folder.remove()
    assert folder.names() == []


def test_runs_are_a_uri_or_a_path_under_the_data_directory() -> None:
    settings = Settings(data_dir="/data")
    assert Folder.of_runs(settings).uri == "/data/runs"
    far = settings.model_copy(update={"pipeline": PipelineSettings(runs="s3://bucket/runs/")})
    assert (Folder.of_runs(far) / "t").uri == "s3://bucket/runs/t"


def test_a_file_is_whole_or_absent(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path))
    folder.put("part", b"first")
    with full_disk(), pytest.raises(TerminalStoreError, match=r"make room.*finished part is kept") as caught:
        folder.put("part", bytes(1_000_000))
    assert caught.value.address == f"{tmp_path}/part"
    assert folder.read("part") == b"first"
    assert folder.names() == ["part"]
    folder.sweep()
    assert len(list(tmp_path.iterdir())) == 1


@contextmanager
def full_disk() -> Iterator[None]:
    """The operating system refuses files of more than 64 KiB."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (65_536, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(TerminalStoreError, match="file/stage/part"):
        Folder(f"{tmp_path}/file/stage").put("part", b"x")


def test_dead_letters_make_their_file_at_the_first_letter(tmp_path: Path) -> None:
    with DeadLetters(tmp_path / "deep" / "x.jsonl") as letters:
        assert letters.address is None
        assert not (tmp_path / "deep").exists()
        letters.add({"id": "a", "reason": "\u2028"})
        letters.add({"id": "b"})
    assert letters.address == str(tmp_path / "deep" / "x.jsonl")
    lines = (tmp_path / "deep" / "x.jsonl").read_bytes().split(b"\n")
    assert [json.loads(line)["id"] for line in lines[:-1]] == ["a", "b"]


class Script:
    """Answers calls with prepared outcomes and notes what was asked."""

    def __init__(self, *outcomes: WriteReport | Exception) -> None:
        self.outcomes = list(outcomes)
        self.calls: list[frozenset[str] | None] = []
        self.pauses: list[float] = []

    def __call__(self, keys: frozenset[str] | None = None) -> WriteReport:
        self.calls.append(keys)
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


DOWN = TransientStoreError("search (x)", "/x", "busy")


def test_only_what_failed_transiently_is_sent_again() -> None:
    bad, late = WriteFailure("bad", "too long", False), WriteFailure("late", "throttled", True)
    script = Script(WriteReport(8, 1, (bad, late)), DOWN, WriteReport(1))
    report = write_with_retries(script, 4, script.pauses.append)
    assert report == WriteReport(9, 1, (bad,))
    assert script.calls == [None, frozenset({"late"}), frozenset({"late"})]
    assert 0 < script.pauses[0] < script.pauses[1] * 2.1


def test_what_keeps_failing_becomes_final() -> None:
    late = WriteFailure("late", "throttled", True)
    script = Script(WriteReport(1, 0, (late,)), WriteReport(0, 0, (late,)))
    report = write_with_retries(script, 1, script.pauses.append)
    assert report == WriteReport(1, 0, (WriteFailure("late", "throttled (after 2 attempts)", False),))


def test_a_store_that_stays_down_raises_and_other_errors_are_not_repeated() -> None:
    script = Script(DOWN, DOWN)
    with pytest.raises(TransientStoreError):
        write_with_retries(script, 1, script.pauses.append)
    assert len(script.calls) == 2
    broken = Script(TerminalStoreError("x", "/x", "gone"))
    with pytest.raises(TerminalStoreError):
        write_with_retries(broken, 5, broken.pauses.append)
    assert len(broken.calls) == 1
    assert patiently(Script(DOWN, WriteReport(3)), 1, script.pauses.append) == WriteReport(3)
