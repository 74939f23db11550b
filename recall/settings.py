"""Settings: the YAML an operator writes, checked. Together with the CLI the only reader of files and environment.

Secrets are named, never written: a `*_env` key holds the name of an environment variable.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import Field, ValidationError

from recall.digest.settings import DistillSettings
from recall.entities import Strict
from recall.errors import ConfigError, InvalidRequest
from recall.keys import check_tenant
from recall.options import RecallSettings
from recall.prompts import Prompts
from recall.registry import Registry
from recall.requests import explain_validation
from recall.rows import Caller
from recall.settings_models import (
    EndpointSettings,
    ExtractiveSettings,
    OpenAiSummarizerSettings,
    SummarizerSettings,
    VllmEmbedderSettings,
    VllmEngineSettings,
    VllmSummarizerSettings,
)
from recall.settings_planes import (
    LadybugSettings,
    LanceDbSettings,
    MemorySettings,
    MilvusIndexSettings,
    MilvusSettings,
    NebulaSettings,
    OpenSearchSettings,
    PlanesSettings,
    PostgresSettings,
    SqliteSettings,
    TantivySettings,
)

__all__ = [
    "AuthSettings",
    "EmbedderSettings",
    "EndpointSettings",
    "ExtractiveSettings",
    "HashEmbedderSettings",
    "LadybugSettings",
    "LanceDbSettings",
    "MemorySettings",
    "MilvusIndexSettings",
    "MilvusSettings",
    "MiniLmSettings",
    "NebulaSettings",
    "NoEmbedderSettings",
    "OpenAiSummarizerSettings",
    "OpenSearchSettings",
    "PipelineSettings",
    "PlanesSettings",
    "PostgresSettings",
    "Settings",
    "SqliteSettings",
    "SummarizerSettings",
    "TantivySettings",
    "VllmEmbedderSettings",
    "VllmEngineSettings",
    "VllmSummarizerSettings",
    "load_registry",
    "load_settings",
    "load_tokens",
    "read_yaml",
    "settings_from_environment",
]


class MiniLmSettings(Strict):
    """all-MiniLM-L6-v2 int8 from installed packages, or any folder with `model.onnx` and `tokenizer.json`.

    `max_tokens` counts special tokens, as the model's own limit does. `batch_tokens`: 512 to 2048 are equally fast.
    `threads` also work apart, one batch each; give each of several embedders one.
    """

    kind: Literal["minilm"] = "minilm"
    runtime: Literal["openvino", "onnxruntime"] = "openvino"
    model_dir: str | None = None
    name: str = "all-MiniLM-L6-v2-int8"
    dim: int = Field(384, ge=2)
    max_tokens: int = Field(256, ge=16)
    batch_tokens: int = Field(1024, ge=64)
    threads: int = Field(2, ge=1)

    @property
    def model_name(self) -> str:
        """What identifies vectors of this model: name and token limit. Known without loading the model.

        A folder that is given no name is called after itself, so that it never passes for the packaged model.
        """
        own = self.model_dir is None or "name" in self.model_fields_set
        return f"{self.name if own else Path(self.model_dir or '').name}/{self.max_tokens}"


class HashEmbedderSettings(Strict):
    """Feature-hashed bag of words: no model, no meaning; for tests of everything around the embedder."""

    kind: Literal["hash"]
    dim: int = Field(64, ge=8)

    @property
    def model_name(self) -> str:
        return "hash"


class NoEmbedderSettings(Strict):
    """No query embedding: the vector channel reports `no_embedder`."""

    kind: Literal["none"]
    # Of the vectors that the plane holds; nothing is embedded.
    dim: int = Field(384, ge=2)
    model_name: str = "none"


EmbedderSettings = Annotated[
    MiniLmSettings | HashEmbedderSettings | NoEmbedderSettings | VllmEmbedderSettings, Field(discriminator="kind")
]


class AuthSettings(Strict):
    """Bearer tokens. The variable `tokens_env` holds JSON: token → tenant, or token → {tenant, scope}."""

    tokens_env: str = "RECALL_TOKENS"
    # Tenant of a caller on the loopback interface without a token; null asks every caller for one.
    loopback_tenant: str | None = Field("default", pattern=r"^[A-Za-z0-9_-]{1,64}$")
    # Host headers that the MCP endpoint accepts (`name`, `name:port` or `name:*`), against DNS rebinding.
    mcp_hosts: tuple[str, ...] = ("localhost", "localhost:*", "127.0.0.1", "127.0.0.1:*", "[::1]", "[::1]:*")


class PipelineSettings(Strict):
    """Sizes of a backfill. Rows per part is also what a crash can cost at most, per embedder."""

    runs: str = "runs"
    rows_per_part: int = Field(2048, ge=1)
    embedders: int = Field(1, ge=1)
    load_rows: int = Field(20_000, ge=1)
    write_retries: int = Field(4, ge=0)
    object_store_mb: int = Field(300, ge=80)
    logical_cpus: int = Field(4, ge=1)


class Settings(Strict):
    """One application. Relative paths: `entities` against the settings file, everything else against `data_dir`."""

    data_dir: str = ".recall"
    entities: str | None = None
    planes: PlanesSettings = PlanesSettings()
    embedder: EmbedderSettings = MiniLmSettings()
    recall: RecallSettings = RecallSettings()
    auth: AuthSettings = AuthSettings()
    pipeline: PipelineSettings = PipelineSettings()
    distill: DistillSettings = DistillSettings()

    def data_path(self, relative: str) -> Path:
        """`relative` under the data directory (absolute paths stay)."""
        return Path(self.data_dir) / relative


def read_yaml(path: Path) -> object:
    """Parsed YAML of `path`; ConfigError when it is missing or not YAML."""
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: {error}") from None


def load_settings(
    path: str | Path | None = None, *, data_dir: str | None = None, entities: str | None = None
) -> Settings:
    """Settings from `path` (defaults when None) with paths made absolute; the keyword arguments override the file.

    Raises ConfigError naming the file and every wrong key.
    """
    raw: object = {}
    base = Path.cwd()
    if path is not None:
        path = Path(path).resolve()
        raw, base = read_yaml(path) or {}, path.parent
    if not isinstance(raw, Mapping):
        raise ConfigError(f"{path}: expected a mapping at the top level")
    try:
        settings = Settings.model_validate(_with_prompts(raw, base))
    except ValidationError as error:
        raise ConfigError(f"{path or 'settings'}: {explain_validation(error)}") from None
    declared = entities or (str(base / settings.entities) if settings.entities else None)
    directory = Path(data_dir).resolve() if data_dir else base / settings.data_dir
    return settings.model_copy(
        update={
            "data_dir": str(directory.resolve()),
            "entities": str(Path(declared).resolve()) if declared else None,
        }
    )


def _with_prompts(raw: Mapping[str, object], base: Path) -> Mapping[str, object]:
    """`raw` with the folder `distill.summarizer.prompts` replaced by what its files say: workers read no file."""
    distill = raw.get("distill")
    summarizer = distill.get("summarizer") if isinstance(distill, Mapping) else None
    folder = summarizer.get("prompts") if isinstance(summarizer, Mapping) else None
    if not isinstance(distill, Mapping) or not isinstance(summarizer, Mapping) or not isinstance(folder, str):
        return raw
    prompts = {level: read_yaml(base / folder / f"{level}.yaml") for level in Prompts.model_fields}
    return {**raw, "distill": {**distill, "summarizer": {**summarizer, "prompts": prompts}}}


def load_registry(settings: Settings) -> Registry:
    """The registry that `settings.entities` names; only the built-in entities when it names none."""
    if settings.entities is None:
        return Registry({})
    return Registry.parse(read_yaml(Path(settings.entities)), settings.entities)


def settings_from_environment(
    environment: Mapping[str, str] = os.environ,
    *,
    config: str | None = None,
    data_dir: str | None = None,
    entities: str | None = None,
) -> Settings:
    """Settings as RECALL_CONFIG (else `./recall.yaml`, else defaults), RECALL_DATA_DIR and RECALL_ENTITIES say.

    The keyword arguments, where given, win over the environment.
    """
    path = config or environment.get("RECALL_CONFIG")
    if path is None and Path("recall.yaml").exists():
        path = "recall.yaml"
    return load_settings(
        path,
        data_dir=data_dir or environment.get("RECALL_DATA_DIR"),
        entities=entities or environment.get("RECALL_ENTITIES"),
    )


def load_tokens(auth: AuthSettings, environment: Mapping[str, str] = os.environ) -> dict[str, Caller]:
    """Caller by bearer token, as the variable `auth.tokens_env` says; empty when it is not set.

    Raises ConfigError naming the variable and the position of a wrong entry, never a token.
    """
    text = environment.get(auth.tokens_env, "")
    if not text.strip():
        return {}
    try:
        raw = json.loads(text)
    except ValueError:
        raise ConfigError(f"{auth.tokens_env}: expected JSON, token → tenant or {{tenant, scope}}") from None
    if not isinstance(raw, Mapping):
        raise ConfigError(f"{auth.tokens_env}: expected a JSON object, token → tenant or {{tenant, scope}}")
    return {_token(auth, token, at): _caller(auth, value, at) for at, (token, value) in enumerate(raw.items(), 1)}


def _token(auth: AuthSettings, token: str, at: int) -> str:
    if not re.fullmatch(r"[\x21-\x7e]+", token):
        raise ConfigError(f"{auth.tokens_env}: token {at} must be visible ASCII without spaces")
    return token


def _caller(auth: AuthSettings, value: object, at: int) -> Caller:
    try:
        if isinstance(value, str):
            return Caller(check_tenant(value))
        if isinstance(value, Mapping) and set(value) <= {"tenant", "scope"} and isinstance(value.get("tenant"), str):
            scope = value.get("scope")
            if scope is None or (isinstance(scope, str) and scope):
                return Caller(check_tenant(value["tenant"]), scope)
    except InvalidRequest as error:
        raise ConfigError(f"{auth.tokens_env}: token {at}: {error}") from None
    raise ConfigError(f"{auth.tokens_env}: token {at} must map to a tenant or {{tenant, scope}}")
