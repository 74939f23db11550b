"""Recall as a service on this machine: starts Ray and Serve quietly, waits until every part answers, stops cleanly.

`serve run configs/serve.local.yaml` does the same with Ray's own tools and its usual output.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recall.errors import ConfigError
from recall.settings import Settings, read_yaml

DEFAULT_FILE = Path(__file__).resolve().parents[1] / "configs" / "serve.local.yaml"

# Read by Ray Serve when its processes start. Measured on two cores; see docs/tuning.md.
SWITCHES = {
    "RAY_SERVE_USE_GRPC_BY_DEFAULT": "1",
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}


@dataclass(frozen=True, slots=True)
class ServeFile:
    """What a Serve YAML says, checked by Ray's own schema: options of the proxy and of each deployment."""

    http_options: Mapping[str, Any]
    proxy_location: str
    logging_config: Mapping[str, Any]
    name: str
    route_prefix: str
    numbers: Mapping[str, Mapping[str, Any]]


def read_serve_file(path: str | Path = DEFAULT_FILE) -> ServeFile:
    """The one application of the Serve YAML at `path`. Raises ConfigError."""
    from pydantic import ValidationError
    from ray.serve.schema import ServeDeploySchema

    raw = read_yaml(Path(path))
    try:
        schema = ServeDeploySchema.model_validate(raw)
    except ValidationError as error:
        raise ConfigError(f"{path}: {error}") from None
    if len(schema.applications) != 1:
        raise ConfigError(f"{path}: expected one application, got {len(schema.applications)}")
    application = schema.applications[0]
    deployments = {one.name: one.model_dump(exclude_unset=True, exclude={"name"}) for one in application.deployments}
    return ServeFile(
        schema.http_options.model_dump(exclude_unset=True),
        str(schema.proxy_location.value),
        schema.logging_config.model_dump(exclude_unset=True) if schema.logging_config else {},
        application.name,
        application.route_prefix or "/",
        deployments,
    )


@contextmanager
def serving(
    settings: Settings, *, host: str | None = None, port: int | None = None, serve_file: str | Path = DEFAULT_FILE
) -> Iterator[str]:
    """A running service; yields its base URL. `host` and `port` win over the file; port 0 takes a free one.

    Joins a Ray that this process already started, else starts one and stops it at the end. Raises ConfigError for a
    wrong file, RuntimeError from Serve when a deployment cannot start (for instance ModelMismatch).
    """
    for name, value in SWITCHES.items():
        os.environ.setdefault(name, value)
    import ray
    from ray import serve

    from deployments.app import compose

    plan = read_serve_file(serve_file)
    options = {**plan.http_options, **({"host": host} if host else {}), **({} if port is None else {"port": port})}
    if options["port"] == 0:
        options["port"] = free_port(options["host"])
    application = compose(settings, plan.numbers)
    started = not ray.is_initialized()
    if started:
        _start_ray(settings)
    try:
        serve.start(proxy_location=plan.proxy_location, http_options=options, logging_config=dict(plan.logging_config))
        serve.run(application, name=plan.name, route_prefix=plan.route_prefix)
        yield f"http://{_shown(options['host'])}:{options['port']}"
    finally:
        serve.shutdown()
        if started:
            ray.shutdown()


def run(
    settings: Settings,
    host: str | None = None,
    port: int | None = None,
    serve_file: str | Path = DEFAULT_FILE,
    ready: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve until Ctrl-C or SIGTERM. `ready` is called with the base URL once every deployment runs."""
    stop = threading.Event()
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with serving(settings, host=host, port=port, serve_file=serve_file) as url:
            ready(url)
            stop.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def free_port(host: str) -> int:
    """A TCP port that was free a moment ago."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _start_ray(settings: Settings) -> None:
    import ray

    ray.init(
        address="local",
        num_cpus=settings.pipeline.logical_cpus,
        object_store_memory=settings.pipeline.object_store_mb * 1024 * 1024,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.WARNING,
    )


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host
