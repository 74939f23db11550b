"""The embedding stage: changed rows in, chunks with vectors out. Holds the model; no text leaves it.

Never opens a store or a file.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pipelines.receipts import Failure, Receipt
from pipelines.stages import Staged, conform
from recall.errors import ConfigError
from recall.keys import chunk_key
from recall.model_ports import Embedder, TextSpan
from recall.registry import Registry
from recall.texts import chunk_spans

# Characters tokenised at once: the spans of a million characters take some 30 MB.
CALL_CHARACTERS = 1_000_000
# From this many rows on, a model that fails on all of them is what is wrong, not the rows.
ROWS_TO_BLAME_MODEL = 8


@dataclass(frozen=True, slots=True)
class Chunks:
    """Chunks of some rows, in row order: index of the row, ordinal in it, span, vector."""

    rows: list[int]
    ordinals: list[int]
    spans: list[TextSpan]
    vectors: np.ndarray
    tokens: int
    calls: int


class EmbedStage:
    """Chunks the text of rows and embeds the chunks with `model`.

    A row on which the model raises becomes a failure; the rows beside it go on.
    """

    def __init__(self, model: Embedder, registry: Registry, schema: pa.Schema) -> None:
        self._model = model
        self._schema = schema
        self._specs = {name: e.spec.embed for name, e in registry.entities.items() if e.spec.embed is not None}

    def __call__(self, rows: pa.Table) -> Iterator[Staged]:
        """Parts of whole rows. Raises ConfigError when the model fails on every row."""
        lengths = [len(text or "") for text in rows["text"].to_pylist()]
        for first, last in _calls(lengths):
            yield self._part(rows.slice(first, last - first))

    def _part(self, rows: pa.Table) -> Staged:
        live = rows["live"].to_pylist()
        entities, texts = rows["entity"].to_pylist(), rows["text"].to_pylist()
        embeddable = [index for index, alive in enumerate(live) if alive]
        parts, failed = self._isolate(embeddable, entities, texts)
        if len(failed) == len(embeddable) >= ROWS_TO_BLAME_MODEL:
            reason = next(iter(failed.values()))
            raise ConfigError(f"embedder {self._model.name} fails on every row of a batch: {reason}")
        ids = rows["id"].to_pylist()
        hashes = rows["hash"].to_pylist()
        receipt = Receipt(
            changed=sum(h != "" for h in hashes) - len(failed),
            chunks=sum(len(part.rows) for part in parts),
            tokens=sum(part.tokens for part in parts),
            model_calls=sum(part.calls for part in parts),
            failures=tuple(Failure(entities[i], ids[i], reason) for i, reason in failed.items()),
        )
        return Staged(assemble(rows, parts, failed, self._schema), receipt)

    def _isolate(
        self, indices: Sequence[int], entities: Sequence[str], texts: Sequence[str]
    ) -> tuple[list[Chunks], dict[int, str]]:
        """Chunks of `indices`, halving what the model raises on until the rows at fault stand alone."""
        if not indices:
            return [], {}
        try:
            return [self._embed(indices, entities, texts)], {}
        except Exception as error:  # noqa: BLE001 - the border where a model's failure becomes a dead letter
            if len(indices) == 1:
                return [], {indices[0]: f"{type(error).__name__}: {error}"}
        middle = len(indices) // 2
        first, bad = self._isolate(indices[:middle], entities, texts)
        second, worse = self._isolate(indices[middle:], entities, texts)
        return first + second, bad | worse

    def _embed(self, indices: Sequence[int], entities: Sequence[str], texts: Sequence[str]) -> Chunks:
        tokens = self._model.token_spans([texts[index] for index in indices])
        rows: list[int] = []
        ordinals: list[int] = []
        spans: list[TextSpan] = []
        for index, found in zip(indices, tokens, strict=True):
            cut = chunk_spans(found, self._specs[entities[index]], self._model.max_tokens)
            rows += [index] * len(cut)
            ordinals += range(len(cut))
            spans += cut
        chunks = [texts[index][span.start : span.end] for index, span in zip(rows, spans, strict=True)]
        vectors = self._model.embed(chunks) if chunks else np.zeros((0, self._model.dim), np.float32)
        if vectors.shape != (len(chunks), self._model.dim) or not np.isfinite(vectors).all():
            raise ValueError(
                f"the model returned {vectors.shape} for {len(chunks)} texts, or values that are no number"
            )
        return Chunks(rows, ordinals, spans, vectors, sum(map(len, tokens)), int(bool(chunks)))


def assemble(rows: pa.Table, parts: Sequence[Chunks], failed: Container[int], schema: pa.Schema) -> pa.Table:
    """One record per chunk; a row without chunks, unless it `failed`, is one record that is not live."""
    indices = [index for part in parts for index in part.rows]
    chunked = set(indices)
    bare = [index for index in range(rows.num_rows) if index not in chunked and index not in failed]
    count = len(indices)
    ordinals = [o for part in parts for o in part.ordinals] + [0] * len(bare)
    spans = [span for part in parts for span in part.spans] + [TextSpan(0, 0)] * len(bare)
    table = rows.take(pa.array(indices + bare, pa.int64()))
    keys = [chunk_key(key, ordinal) for key, ordinal in zip(table["row_key"].to_pylist(), ordinals, strict=True)]
    columns = {
        "key": pa.array(keys, pa.string()),
        "live": pa.array([True] * count + [False] * len(bare), pa.bool_()),
        "ordinal": pa.array(ordinals, pa.int32()),
        "start": pa.array([span.start for span in spans], pa.int32()),
        "end": pa.array([span.end for span in spans], pa.int32()),
        "vector": _vectors(parts, len(bare), schema.field("vector").type),
    }
    for name, column in columns.items():
        position = table.schema.get_field_index(name)
        table = table.append_column(name, column) if position < 0 else table.set_column(position, name, column)
    return conform(table, schema)


def _vectors(parts: Sequence[Chunks], bare: int, kind: pa.DataType) -> pa.Array:
    matrix = [part.vectors for part in parts]
    flat = np.concatenate(matrix).astype(np.float32, copy=False).ravel() if matrix else np.zeros(0, np.float32)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(flat), type=kind)
    return pa.concat_arrays([vectors, pa.nulls(bare, kind)])


def _calls(lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Consecutive ranges of at most CALL_CHARACTERS characters, or one row."""
    first, size = 0, 0
    for index, length in enumerate(lengths):
        if index > first and size + length > CALL_CHARACTERS:
            yield first, index
            first, size = index, 0
        size += length
    if first < len(lengths):
        yield first, len(lengths)
