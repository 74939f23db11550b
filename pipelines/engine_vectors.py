"""The vector lane through a vLLM engine: chunks in token ids in, whole rows with vectors out, failed rows again.

The engine sees one chunk at a time and returns them in any order. One actor gathers a row's chunks: a row reaches a
part whole or not at all, and what an actor that dies had gathered counts as never staged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import ray
from ray.data import ActorPoolStrategy, Dataset

from pipelines.embed import Chunks, assemble
from pipelines.engine import ERROR, PASSED, SHARE, TOKENS, Fields, load_tokenizer, through_engine
from pipelines.lanes import Lane, Shares
from pipelines.receipts import Failure, Receipt, read_receipts, receipts_table
from pipelines.rowsource import ChangedRows, PageRead
from pipelines.sinks import put_part
from pipelines.stages import Staged, split_pending
from pipelines.storage import Folder
from recall.errors import ConfigError, RecallError, TransientStoreError
from recall.keys import content_hash
from recall.model_ports import TextSpan
from recall.settings import VllmEmbedderSettings
from recall.texts import chunk_spans

AGAIN = "again-"
# A chunk on its way through the engine. The first of a row carries the row, as one opaque value. A row without chunks,
# and the tally of a page, have no tokens and pass the engine by.
CHUNK = pa.schema(
    [
        ("row_key", pa.string()),
        ("ordinal", pa.int32()),
        ("chunks", pa.int32()),
        ("start", pa.int32()),
        ("end", pa.int32()),
        ("ids", pa.list_(pa.int32())),
        ("row", pa.binary()),
    ]
)
_PLACE = [field for field in CHUNK if field.name != "ids"]
_ANSWER = pa.schema([*_PLACE, ("tokens", pa.int32()), ("vector", pa.binary()), (ERROR, pa.string())])


def stage_vectors(
    lane: Lane,
    settings: VllmEmbedderSettings,
    pages: Sequence[PageRead],
    folder: Folder,
    on_receipt: Callable[[Receipt], None],
) -> Receipt:
    """Stage the vectors of what changed in `pages` under `folder`; returns the sum of receipts.

    Rows that fail are sent again, at most `vllm.retries` times. Raises TransientStoreError when a worker died with rows
    that it had gathered: run again, and they are staged then.
    """
    shares = Shares.of(lane.settings)
    total = Receipt()
    changed = ray.data.read_datasource(
        ChangedRows(lane, pages), num_cpus=shares.cpus, concurrency=shares.readers, override_num_blocks=len(pages)
    )
    for attempt in range(settings.vllm.retries + 1):
        last = attempt == settings.vllm.retries
        for batch in _receipts(lane, settings, changed, folder, last).iter_batches(
            batch_size=None, batch_format="pyarrow", prefetch_batches=0
        ):
            receipt = read_receipts(batch)
            total += receipt
            on_receipt(receipt)
        names = [name for name in folder.names() if name.startswith(AGAIN)]
        if not names:
            break
        changed = ray.data.from_arrow([folder.read_table(name).cast(lane.pending_schema) for name in names])
        for name in names:
            folder.drop(name)
    lost = total.rows - total.unchanged - total.changed - total.deleted - len(total.failures)
    if lost > 0:
        detail = f"a worker died with {lost} rows that it had not staged; run it again to resume"
        raise TransientStoreError("ray", f"stage vector of tenant {lane.tenant}", detail)
    return total


def _receipts(lane: Lane, settings: VllmEmbedderSettings, changed: Dataset, folder: Folder, last: bool) -> Dataset:
    chunks = changed.map_batches(
        Chunking,
        fn_constructor_args=(lane, settings),
        batch_format="pyarrow",
        compute=ActorPoolStrategy(size=lane.settings.pipeline.embedders),
        **SHARE,
    )
    answered = through_engine(chunks, settings.vllm, "embed", _ask, _keep)
    return answered.map_batches(
        Gathering,
        fn_constructor_args=(lane, folder, last),
        batch_size=lane.settings.pipeline.rows_per_part,
        batch_format="pyarrow",
        # One gatherer sees all chunks of a row; it copies vectors and writes parts, far faster than they are made.
        compute=ActorPoolStrategy(size=1),
        **SHARE,
    )


class Chunking:
    """The actor that cuts rows into chunks of the model's own tokens. Loads its tokenizer, not the model."""

    def __init__(self, lane: Lane, settings: VllmEmbedderSettings) -> None:
        self._lane = lane
        self._tokenizer = load_tokenizer(settings.vllm)
        self._longest = settings.max_tokens
        self._inner = settings.max_tokens - self._tokenizer.num_special_tokens_to_add(pair=False)

    def __call__(self, batch: pa.Table) -> pa.Table:
        found: list[Fields] = []
        for at, row in enumerate(batch.select(["row_key", "entity", "live", "text"]).to_pylist()):
            carried = _packed(batch.slice(at, 1))
            chunks = self._chunks(row["entity"], row["text"] or "") if row["live"] else []
            if not chunks:
                found.append({"row_key": row["row_key"], "chunks": 0, "row": carried})
            for ordinal, (span, ids) in enumerate(chunks):
                first = carried if ordinal == 0 else None
                place = {"row_key": row["row_key"], "ordinal": ordinal, "chunks": len(chunks), "row": first}
                found.append({**place, "start": span.start, "end": span.end, "ids": ids})
        return pa.Table.from_pylist(found, schema=CHUNK)

    def _chunks(self, entity: str, text: str) -> list[tuple[TextSpan, list[int]]]:
        spec = self._lane.registry.entity(entity).spec.embed
        if spec is None or not text:
            return []
        offsets = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        spans = chunk_spans([TextSpan(*offset) for offset in offsets], spec, self._inner)
        texts = [text[span.start : span.end] for span in spans]
        if not texts:
            return []
        ids = self._tokenizer(texts, truncation=True, max_length=self._longest)["input_ids"]
        return list(zip(spans, ids, strict=True))


def _ask(row: Fields) -> Fields:
    ids = row["ids"]
    if ids is None:
        return {TOKENS: None, ERROR: PASSED}
    return {TOKENS: [int(token) for token in ids], ERROR: ""}


def _keep(row: Fields) -> Fields:
    vector = np.asarray(row["embeddings"], np.float32).tobytes()
    return {**{field.name: row[field.name] for field in _PLACE}, "tokens": row["num_input_tokens"], "vector": vector}


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A chunk that left the engine, with a vector or an error."""

    span: TextSpan
    tokens: int
    vector: bytes
    error: str


@dataclass(slots=True)
class _Gathered:
    """What has arrived of one row: chunks by ordinal."""

    row: bytes | None = None
    chunks: dict[int, _Chunk] = field(default_factory=dict)


class Gathering:
    """The actor behind the engine: keeps chunks until their row is whole, then stages it.

    A row with a chunk that failed is written down to be tried again, or is a failure when this is the `last` try.
    """

    def __init__(self, lane: Lane, folder: Folder, last: bool) -> None:
        self._lane = lane
        self._folder = folder
        self._last = last
        self._waiting: dict[str, _Gathered] = {}

    def __call__(self, batch: pa.Table) -> pa.Table:
        bare: list[bytes] = []
        whole: list[_Gathered] = []
        for answer in _answers(batch):
            if not answer["chunks"]:
                bare.append(answer["row"])
                continue
            gathered = self._waiting.setdefault(answer["row_key"], _Gathered())
            gathered.row = gathered.row or answer["row"]
            span = TextSpan(answer["start"], answer["end"])
            gathered.chunks[answer["ordinal"]] = _Chunk(
                span, answer["tokens"] or 0, answer["vector"] or b"", answer[ERROR] or ""
            )
            if len(gathered.chunks) == answer["chunks"]:
                whole.append(self._waiting.pop(answer["row_key"]))
        receipts: list[Receipt] = []
        try:
            receipts.extend(self._stage(bare, whole))
        except RecallError as error:
            return receipts_table(receipts, error)
        return receipts_table(receipts)

    def _stage(self, bare: Sequence[bytes], whole: Sequence[_Gathered]) -> Iterator[Receipt]:
        good = [one for one in whole if not _errors(one)]
        bad = [one for one in whole if _errors(one)]
        rows, tally = split_pending(self._rows([*(one.row for one in good if one.row), *bare]))
        yield tally
        if rows.num_rows:
            staged = self._assembled(rows, good)
            put_part(self._folder, staged)
            yield staged.receipt
        if bad:
            yield self._again(bad)

    def _rows(self, packed: Sequence[bytes]) -> pa.Table:
        schema = self._lane.pending_schema
        return pa.concat_tables([schema.empty_table(), *map(_unpacked, packed)])

    def _assembled(self, rows: pa.Table, good: Sequence[_Gathered]) -> Staged:
        placed = [(at, ordinal, one.chunks[ordinal]) for at, one in enumerate(good) for ordinal in sorted(one.chunks)]
        part = Chunks(
            [at for at, *_ in placed],
            [ordinal for _, ordinal, _ in placed],
            [chunk.span for *_, chunk in placed],
            self._vectors([chunk.vector for *_, chunk in placed]),
            sum(chunk.tokens for *_, chunk in placed),
            len(placed),
        )
        changed = sum(value != "" for value in rows["hash"].to_pylist())
        receipt = Receipt(changed=changed, chunks=len(placed), tokens=part.tokens, model_calls=part.calls)
        return Staged(assemble(rows, [part] if placed else [], (), self._lane.staged_schema), receipt)

    def _vectors(self, raw: Sequence[bytes]) -> np.ndarray:
        """(n, dim) float32 unit vectors. Raises ConfigError when the model has another number of dimensions."""
        dim = self._lane.context.model.dim
        if raw and len(raw[0]) != dim * np.dtype(np.float32).itemsize:
            raise ConfigError(f"embedder.dim is {dim}, but the model answers {len(raw[0]) // 4} dimensions")
        matrix = np.frombuffer(b"".join(raw), np.float32).reshape(len(raw), dim)
        unit: np.ndarray = matrix / np.maximum(np.linalg.norm(matrix, axis=1, keepdims=True), 1e-12)
        return unit

    def _again(self, bad: Sequence[_Gathered]) -> Receipt:
        table = self._rows([one.row for one in bad if one.row])
        if not self._last:
            name = content_hash(table["row_key"].to_pylist())
            self._folder.put_table(f"{AGAIN}{name}.parquet", table)
            return Receipt()
        identities = table.select(["entity", "id"]).to_pylist()
        failures = [Failure(**row, reason=_errors(one)) for row, one in zip(identities, bad, strict=True)]
        return Receipt(failures=tuple(failures))


def _errors(gathered: _Gathered) -> str:
    """The first error of a row's chunks; "" when all are good."""
    return next((chunk.error for chunk in gathered.chunks.values() if chunk.error), "")


def _answers(batch: pa.Table) -> list[Fields]:
    """Rows of _ANSWER. A batch that passed the engine by, or failed in it, lacks columns."""
    found = set(batch.schema.names)
    columns = [
        batch[one.name].cast(one.type) if one.name in found else pa.nulls(batch.num_rows, one.type) for one in _ANSWER
    ]
    rows: list[Fields] = pa.table(columns, schema=_ANSWER).to_pylist()
    return rows


def _packed(row: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, row.schema) as writer:
        writer.write_table(row)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def _unpacked(packed: bytes) -> pa.Table:
    with pa.ipc.open_stream(packed) as reader:
        table: pa.Table = reader.read_all()
    return table
