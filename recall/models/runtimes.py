"""Two runtimes of one ONNX encoder behind one seam: batches of token ids in, hidden states out. Never downloads.

All texts of a batch have the same length, so nothing is padded and every mask is all ones.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from recall.errors import ConfigError

# Called with a batch's place in the sequence and its (rows, tokens, dim) float32 states, which it must not keep.
Take = Callable[[int, np.ndarray], None]

# Activations are quantised in groups of this many. Measured on texts of 45 tokens against the runtime's own default
# (groups of 32, bfloat16): 1.3 times the tokens per CPU-second; cosine to float32 0.9993 instead of 0.9998.
_GROUP = "128"


class Runtime(Protocol):
    """A loaded encoder. Safe to call from several threads, one call at a time is computed."""

    dim: int

    def run(self, batches: Sequence[np.ndarray], take: Take) -> None:
        """Encode int64 (rows, tokens) batches. `take` is called once a batch, in any order, on any thread."""


class OpenVinoRuntime:
    """OpenVINO on the CPU: one stream a thread, each with a batch of its own."""

    def __init__(self, model: Path, threads: int) -> None:
        openvino = _import_openvino()
        core = openvino.Core()
        options = {
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": threads,
            # Pinned threads of two processes would share one core and leave the other idle.
            "ENABLE_CPU_PINNING": False,
            # By default the CPU's model decides between float32 and bfloat16; an index must not depend on that.
            "INFERENCE_PRECISION_HINT": "f32",
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": _GROUP,
            # Compiled kernels kept, by shape. Texts of all lengths take a process with the default of 5,000 from 0.5 to
            # 1.8 GiB within 2,000 texts and on; with 32 to 100 it stays under 0.8 GiB, no slower.
            "CPU_RUNTIME_CACHE_CAPACITY": "64",
        }
        try:
            compiled = core.compile_model(core.read_model(model), "CPU", options)
            self._inputs = {port.any_name for port in compiled.inputs}
            self.dim = int(compiled.output(0).partial_shape[-1].get_length())
        except RuntimeError as error:
            raise ConfigError(f"embedder model {model}: {error}") from None
        self._queue: Any = openvino.AsyncInferQueue(compiled, threads)
        self._lock = threading.Lock()

    def run(self, batches: Sequence[np.ndarray], take: Take) -> None:
        with self._lock:
            self._queue.set_callback(lambda request, place: take(place, request.get_output_tensor(0).data))
            try:
                for place, ids in enumerate(batches):
                    self._queue.start_async(_feed(ids, self._inputs), place)
            finally:
                self._queue.wait_all()


def _import_openvino() -> Any:
    """The package, without its telemetry: importing it would fork a process that reports the import to the vendor."""
    known = sys.modules.get("openvino_telemetry")
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
    try:
        return importlib.import_module("openvino")
    except ImportError as error:
        raise ConfigError(f"embedder runtime openvino: {error}; pip install 'ray-recall[local]'") from None
    finally:
        if known is None:
            del sys.modules["openvino_telemetry"]
        else:
            sys.modules["openvino_telemetry"] = known


class OnnxRuntime:
    """ONNX Runtime on the CPU: one batch after the other, all threads on it."""

    def __init__(self, model: Path, threads: int) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise ConfigError(f"embedder runtime onnxruntime: {error}; pip install 'ray-recall[local]'") from None
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        # Idle worker threads would spin for the next batch and take the cores of whoever else runs.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            self._session: Any = onnxruntime.InferenceSession(str(model), options, ["CPUExecutionProvider"])
        except Exception as error:
            # Its exceptions share no base class.
            raise ConfigError(f"embedder model {model}: {error}") from error
        self._inputs = {port.name for port in self._session.get_inputs()}
        self.dim = int(self._session.get_outputs()[0].shape[-1])
        self._lock = threading.Lock()

    def run(self, batches: Sequence[np.ndarray], take: Take) -> None:
        with self._lock:
            for place, ids in enumerate(batches):
                take(place, self._session.run(None, _feed(ids, self._inputs))[0])


def _feed(ids: np.ndarray, inputs: set[str]) -> dict[str, np.ndarray]:
    feed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    return {name: value for name, value in feed.items() if name in inputs}
