"""A vLLM engine of `ray.data.llm` as one stage of a dataset. Knows settings and token ids, neither rows nor prompts."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from typing import Any, Literal

from ray.data import Dataset

from recall.errors import ConfigError
from recall.settings import VllmEngineSettings

# Set on a row, it takes the row past the engine untouched; set by the engine, it says why the row failed.
ERROR = "__inference_error__"
PASSED = "not for the engine"
TOKENS = "tokenized_prompt"

Fields = dict[str, Any]
# What one worker outside the engine holds: the engine is what the machine is for.
SHARE = {"num_cpus": 0.25}
_QUIET = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_LOGGING_LEVEL": "WARNING"}


def through_engine(
    rows: Dataset,
    settings: VllmEngineSettings,
    task: Literal["generate", "embed"],
    ask: Callable[[Fields], Fields],
    keep: Callable[[Fields], Fields],
) -> Dataset:
    """`rows` through the engine, lazily and in any order; one row out for each row in.

    `ask` gives a row's TOKENS (and `sampling_params`), or sets ERROR to PASSED. `keep` says what of an answered row
    goes on; a row with an ERROR goes on with everything that it had. Raises ConfigError when vLLM is not installed.
    """
    if importlib.util.find_spec("vllm") is None:
        raise ConfigError("vllm is not installed: pip install 'ray-recall[gpu]', or choose another kind of model")
    from ray.data.llm import build_processor, vLLMEngineProcessorConfig

    config = vLLMEngineProcessorConfig(
        model_source=settings.model,
        task_type=task,
        batch_size=settings.batch_size,
        concurrency=(settings.engines, settings.engines),
        max_concurrent_batches=settings.concurrent_batches,
        accelerator_type=settings.accelerator,
        placement_group_config={"bundle_per_worker": settings.bundle} if settings.bundle else None,
        engine_kwargs={
            **settings.engine,
            "max_model_len": settings.max_model_len,
            "tensor_parallel_size": settings.tensor_parallel,
        },
        runtime_env={"env_vars": {**_QUIET, **settings.environment}},
        log_engine_metrics=settings.metrics,
        should_continue_on_error=True,
        # Rows bring token ids: what fits a model is decided where its tokenizer is.
        chat_template_stage=False,
        tokenize_stage=False,
        detokenize_stage=False,
    )
    processor = build_processor(
        config, preprocess=ask, postprocess=keep, preprocess_map_kwargs=SHARE, postprocess_map_kwargs=SHARE
    )
    return processor(rows)


def load_tokenizer(settings: VllmEngineSettings) -> Any:
    """The model's own tokenizer. Raises ConfigError when the model has none."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(settings.model)
    except (OSError, ValueError) as error:
        raise ConfigError(f"no tokenizer for model {settings.model!r}: {error}") from None


def seconds_in_engine(answered: Mapping[str, Any]) -> float:
    """How long the engine took for a row of its output; 0 for a row that it did not answer."""
    taken = answered.get("time_taken_llm")
    return max(0.0, float(taken)) if taken is not None else 0.0
