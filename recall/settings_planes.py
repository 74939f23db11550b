"""Settings of the stores: one class per store, chosen by `kind`. Secrets are named, never written."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from recall.entities import Strict
from recall.settings_secrets import secret


class SqliteSettings(Strict):
    """Source of truth in one SQLite file (WAL)."""

    kind: Literal["sqlite"] = "sqlite"
    path: str = "rows.sqlite"
    threads: int = Field(4, ge=1, le=64)


class PostgresSettings(Strict):
    """Source of truth in a PostgreSQL database (14 or newer), in tables of `db_schema`.

    `user` owns the tables and is no superuser. Leases need a session: connect directly, or through a pooler in
    session mode.
    """

    kind: Literal["postgres"]
    host: str = "127.0.0.1"
    port: int = Field(5432, ge=1, le=65535)
    database: str = "recall"
    user: str = "recall"
    # Name of the variable that holds the password; null means none (peer, certificate, ~/.pgpass).
    password_env: str | None = None
    # Further parameters of libpq, such as sslmode, sslrootcert or target_session_attrs.
    parameters: dict[str, str] = Field(default_factory=dict)
    # Name of a variable that holds a whole connection URL, password included; it replaces all of the above.
    url_env: str | None = None
    db_schema: str = Field("recall", pattern=r"^[a-z][a-z0-9_]{0,30}$")
    # One set of tables for all tenants, or a schema `<db_schema>_<tenant>` for each (hundreds at most).
    isolation: Literal["shared", "dedicated"] = "shared"
    # Policies of row-level security on every table that is made, so that a forgotten condition shows nothing.
    row_security: bool = True
    # Reading threads and connections of one process; jobs and leases need connections beside the threads.
    threads: int = Field(8, ge=1, le=64)
    pool_size: int = Field(10, ge=2, le=128)
    connect_timeout_s: int = Field(5, ge=2)
    read_timeout_s: float = Field(10.0, gt=0)
    write_timeout_s: float = Field(120.0, gt=0)

    @field_validator("parameters")
    @classmethod
    def _no_secret(cls, parameters: dict[str, str]) -> dict[str, str]:
        if named := sorted({"password", "sslpassword"} & set(parameters)):
            raise ValueError(f"{', '.join(named)}: secrets are never written here; use password_env or url_env")
        return parameters

    def secret(self, name: str, environment: Mapping[str, str] = os.environ) -> str:
        """The value of the variable `name`; ConfigError when it is not set."""
        return secret(name, "planes.rows", environment)


class LanceDbSettings(Strict):
    """Vector plane in LanceDB tables, one per tenant and index version."""

    kind: Literal["lancedb"] = "lancedb"
    path: str = "vectors"
    # Below this many chunks a flat scan is exact and fast enough; from here on an IVF_HNSW_SQ index is built.
    index_from: int = Field(10_000, ge=256)
    ef: int = Field(200, ge=16)
    refine_factor: int = Field(3, ge=1)
    optimize_every: int = Field(50, ge=1)
    threads: int = Field(4, ge=1, le=64)
    open_tenants: int = Field(32, ge=1)


class MilvusIndexSettings(Strict):
    """Vector index of a Milvus collection, metric cosine. `params` build it, `search` go with every query."""

    kind: Literal["HNSW", "DISKANN", "GPU_CAGRA", "AUTOINDEX", "FLAT"] = "HNSW"
    params: dict[str, int | float | str] = Field(default_factory=dict)
    search: dict[str, int | float | str] = Field(default_factory=dict)


class MilvusBulkSettings(Strict):
    """First loads of a tenant through the server's own import of Parquet files, off while `from_rows` is null.

    Object stores take credentials as their own tools do (AWS_ACCESS_KEY_ID and so on).
    """

    # Chunks from which a first load is imported; smaller ones and all later ones are batched upserts.
    from_rows: int | None = Field(None, ge=1)
    # Where import files are written: an absolute path, or a URI such as s3://bucket/prefix?endpoint_override=host:9000.
    uri: str | None = Field(None, pattern=r"^(/|file:///|s3://|gs://)[^@]*$")
    # What the server calls that place; null: the path, in an object store without the bucket, which must be its own.
    server_path: str | None = None
    file_rows: int = Field(50_000, ge=1)
    poll_s: float = Field(1.0, gt=0)
    # For one load as a whole, from the first file to the last row that can be found.
    timeout_s: float = Field(3600.0, gt=0)

    @model_validator(mode="after")
    def _has_place(self) -> MilvusBulkSettings:
        if self.from_rows is not None and self.uri is None:
            raise ValueError("from_rows needs uri: where import files are written and the server reads them")
        return self


class MilvusSettings(Strict):
    """Vector plane in a Milvus server. Collections are called `collection`_<index version>[_<tenant>]."""

    kind: Literal["milvus"]
    uri: str = "http://127.0.0.1:19530"
    # Name of the variable that holds the token, `user:password` or an API key; null means none.
    token_env: str | None = None
    db: str = "default"
    collection: str = Field("recall", pattern=r"^[A-Za-z][A-Za-z0-9_]{0,31}$")
    # One collection for all tenants (partition key), or one for each.
    isolation: Literal["shared", "dedicated"] = "shared"
    index: MilvusIndexSettings = MilvusIndexSettings()
    consistency: Literal["Strong", "Session", "Bounded", "Eventually"] = "Bounded"
    batch_rows: int = Field(1000, ge=1, le=10_000)
    # Chunks written by one load from which on `finish` seals them, so that the server indexes them at once.
    flush_rows: int = Field(10_000, ge=1)
    bulk: MilvusBulkSettings = MilvusBulkSettings()
    read_timeout_s: float = Field(10.0, gt=0)
    write_timeout_s: float = Field(120.0, gt=0)

    def token(self, environment: Mapping[str, str] = os.environ) -> str:
        """The token; ConfigError when its variable is not set."""
        if self.token_env is None:
            return ""
        return secret(self.token_env, "planes.vector", environment)


class TantivySettings(Strict):
    """Search plane in tantivy indexes, one per tenant and index version."""

    kind: Literal["tantivy"] = "tantivy"
    path: str = "search"
    writer_heap_mb: int = Field(64, ge=15)
    threads: int = Field(4, ge=1, le=64)
    open_tenants: int = Field(32, ge=1)


class OpenSearchSettings(Strict):
    """Search plane in an OpenSearch cluster. Indexes are called `index`-<version>[-<tenant>]."""

    kind: Literal["opensearch"]
    hosts: tuple[Annotated[str, Field(pattern=r"^https?://[^\s/@]+(/[^\s@]*)?$")], ...] = Field(
        ("http://127.0.0.1:9200",), min_length=1
    )
    # Basic authentication; `password_env` names the variable that holds the password.
    user: str | None = None
    password_env: str | None = None
    verify_certs: bool = True
    ca_certs: str | None = None
    index: str = Field("recall", pattern=r"^[a-z][a-z0-9_]{0,31}$")
    # One index for all tenants (a routed, filtered alias each), or one for each. Tenants that share an index also share
    # its word statistics, and each lives in one shard.
    isolation: Literal["shared", "dedicated"] = "shared"
    tenants: dict[str, Literal["shared", "dedicated"]] = Field(default_factory=dict)
    shards: int = Field(1, ge=1, le=1024)
    replicas: int = Field(1, ge=0, le=16)
    # Outside of loads.
    refresh_interval: str = Field("1s", pattern=r"^\d+(ms|s|m)$")
    bulk_rows: int = Field(1000, ge=1, le=10_000)
    bulk_mb: int = Field(8, ge=1, le=90)
    timeout_ms: int = Field(10_000, ge=1)
    write_timeout_ms: int = Field(60_000, ge=1)
    retries: int = Field(4, ge=0, le=10)
    # Connections of one process (and event loop) to one host.
    pool_size: int = Field(16, ge=1, le=256)

    def isolation_of(self, tenant: str) -> Literal["shared", "dedicated"]:
        return self.tenants.get(tenant, self.isolation)

    def password(self, environment: Mapping[str, str] = os.environ) -> str:
        """The password; ConfigError when its variable is not set."""
        if self.password_env is None:
            return ""
        return secret(self.password_env, "planes.search", environment)


class LadybugSettings(Strict):
    """Graph plane in ladybug databases, one per tenant and index version."""

    kind: Literal["ladybug"] = "ladybug"
    path: str = "graph"
    buffer_pool_mb: int = Field(128, ge=32)
    threads: int = Field(4, ge=1, le=64)
    open_tenants: int = Field(16, ge=1)


class NebulaSettings(Strict):
    """Graph plane in a NebulaGraph cluster. Spaces are called `space`_<graph version>[_<tenant>]."""

    kind: Literal["nebula"]
    addresses: tuple[Annotated[str, Field(pattern=r"^[^\s:]+:\d{1,5}$|^\[[0-9a-fA-F:]+\]:\d{1,5}$")], ...] = Field(
        ("127.0.0.1:9669",), min_length=1
    )
    user: str = "root"
    # Name of the variable that holds the password; null means the password that the server ships with.
    password_env: str | None = None
    space: str = Field("recall", pattern=r"^[A-Za-z][A-Za-z0-9_]{0,31}$")
    # Only a dedicated space per tenant (tens of tenants at most) is enforced by the server, and can be traversed.
    isolation: Literal["shared", "dedicated"] = "shared"
    partition_num: int = Field(10, ge=1, le=1024)
    replica_factor: int = Field(1, ge=1, le=9)
    vid_bytes: int = Field(32, ge=32, le=64)
    # Sessions of this process; all processes of a host together must stay below 300 per user.
    pool_size: int = Field(8, ge=1, le=64)
    batch_rows: int = Field(500, ge=1, le=5000)
    batch_bytes: int = Field(1_000_000, ge=1_000, le=3_500_000)
    # Links that one read may return before hubs are asked for one by one.
    read_rows: int = Field(1_000, ge=1)
    timeout_ms: int = Field(10_000, ge=1)
    connect_timeout_ms: int = Field(2_000, ge=1)
    write_timeout_ms: int = Field(60_000, ge=1)
    retries: int = Field(5, ge=0, le=10)
    # How long a new definition may take to be known everywhere, and the servers' heartbeat_interval_secs.
    schema_wait_s: float = Field(60.0, ge=0)
    heartbeat_s: float = Field(10.0, ge=0)

    def password(self, environment: Mapping[str, str] = os.environ) -> str:
        """The password; ConfigError when its variable is not set."""
        if self.password_env is None:
            return "nebula"
        return secret(self.password_env, "planes.graph", environment)


class MemorySettings(Strict):
    """Planes that live in one process; for tests and notebooks."""

    kind: Literal["memory"]


class PlanesSettings(Strict):
    rows: Annotated[SqliteSettings | PostgresSettings | MemorySettings, Field(discriminator="kind")] = SqliteSettings()
    vector: Annotated[LanceDbSettings | MilvusSettings | MemorySettings, Field(discriminator="kind")] = (
        LanceDbSettings()
    )
    search: Annotated[TantivySettings | OpenSearchSettings | MemorySettings, Field(discriminator="kind")] = (
        TantivySettings()
    )
    graph: Annotated[LadybugSettings | NebulaSettings | MemorySettings, Field(discriminator="kind")] = LadybugSettings()
