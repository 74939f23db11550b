"""Settings of summarizers and of bulk engines: one class per kind. Secrets are named, never written."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from recall.entities import Strict
from recall.keys import content_hash
from recall.prompts import Prompts
from recall.settings_secrets import secret


class VllmEngineSettings(Strict):
    """A vLLM engine as `ray.data.llm` runs it."""

    # Folder, repository name or object-store URI of the model.
    model: str
    # GPUs that share one copy of the model, and copies of it.
    tensor_parallel: int = Field(1, ge=1)
    engines: int = Field(1, ge=1)
    batch_size: int = Field(64, ge=1)
    # Batches sent to one engine at a time; enough of them keep it full.
    concurrent_batches: int = Field(8, ge=1)
    # Ray's name of a GPU type, such as L4 or A100-80G; null takes any.
    accelerator: str | None = None
    # Tokens of prompt and answer together.
    max_model_len: int = Field(4096, ge=64)
    # Resources of one worker; null asks for a GPU and a CPU. {CPU: 1} runs a CPU build of vLLM.
    bundle: dict[str, float] | None = None
    # Further arguments of the engine, and environment variables of its processes.
    engine: dict[str, bool | int | float | str] = Field(default_factory=dict)
    environment: dict[str, str] = Field(default_factory=dict)
    # How often rows that failed are sent again.
    retries: int = Field(2, ge=0)
    # Export the engine's metrics through Ray.
    metrics: bool = False


class EndpointSettings(Strict):
    """An OpenAI-compatible HTTP endpoint, and how hard it may be pressed."""

    # Base URL, without /chat/completions.
    url: str = Field(pattern=r"^https?://[^\s@]+$")
    model: str
    # Name of the variable that holds the key; null sends none.
    key_env: str | None = None
    concurrency: int = Field(8, ge=1, le=256)
    # Null means unlimited.
    requests_per_minute: float | None = Field(None, gt=0)
    timeout_s: float = Field(60.0, gt=0)
    # Of a request that met a rate limit, a server error or a broken line.
    retries: int = Field(5, ge=0)
    longest_pause_s: float = Field(60.0, gt=0)

    def key(self, environment: Mapping[str, str] = os.environ) -> str | None:
        """The key; ConfigError when its variable is not set."""
        if self.key_env is None:
            return None
        return secret(self.key_env, self.url, environment)


class ExtractiveSettings(Strict):
    """Picks the sentences that cover a text best, by the configured embedder. No language model."""

    kind: Literal["extractive"] = "extractive"
    # What a sentence loses for saying again what is said, against what it gains by being central, 1.
    diversity: float = Field(0.2, ge=0, le=1)

    @property
    def identity(self) -> str:
        """What of these settings changes a summary; known without loading a model."""
        return f"extractive/3 diversity={self.diversity}"


class PromptedSettings(Strict):
    """A language model and what it is told. `prompts`: a folder of entity, scope and tenant.yaml."""

    # What the recipe of a tree knows the model by; null: kind, model and what changes its answers. Under one name a
    # tree that one engine built is kept up by another that serves the same model.
    name: str | None = Field(None, min_length=1)
    prompts: Prompts = Prompts()
    seed: int = 0

    def _identity(self, model: str) -> str:
        named = model if self.name is None else f"named {self.name}"
        return f"{named} prompts={self.prompts.version} seed={self.seed}"


class OpenAiSummarizerSettings(EndpointSettings, PromptedSettings):
    """Chat completions of an OpenAI-compatible endpoint."""

    kind: Literal["openai"]

    @property
    def identity(self) -> str:
        return self._identity(f"openai/1 {self.model}")


class VllmSummarizerSettings(PromptedSettings):
    """Bulk generation by vLLM, temperature 0."""

    kind: Literal["vllm"]
    vllm: VllmEngineSettings

    @property
    def identity(self) -> str:
        weights = {name: self.vllm.engine[name] for name in ("dtype", "quantization") if name in self.vllm.engine}
        model = f"vllm/1 {self.vllm.model} {content_hash(weights)[:8]} max_model_len={self.vllm.max_model_len}"
        return self._identity(model)


SummarizerSettings = Annotated[
    ExtractiveSettings | OpenAiSummarizerSettings | VllmSummarizerSettings, Field(discriminator="kind")
]


class VllmEmbedderSettings(Strict):
    """Bulk embedding by vLLM. Queries need the same model, one at a time: `queries` names an endpoint that serves it.

    `max_tokens` counts special tokens. Where queries are encoded some other way, give that embedder this `name` and
    `max_tokens`: an index is only ever searched with vectors of equal `model_name`.
    """

    kind: Literal["vllm"]
    name: str
    dim: int = Field(ge=2)
    max_tokens: int = Field(512, ge=16)
    vllm: VllmEngineSettings
    queries: EndpointSettings | None = None

    @model_validator(mode="after")
    def _chunks_fit(self) -> Self:
        if self.max_tokens > self.vllm.max_model_len:
            raise ValueError(f"max_tokens {self.max_tokens} is more than vllm.max_model_len {self.vllm.max_model_len}")
        return self

    @property
    def model_name(self) -> str:
        return f"{self.name}/{self.max_tokens}"
