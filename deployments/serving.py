"""Recall as a service on this machine: starts Ray and Serve quietly, waits until every part answers, stops cleanly.

`serve run configs/serve.local.yaml` does the same with Ray's own tools and its usual output.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recall.errors import ConfigError
from recall.settings import Settings, read_yaml

if TYPE_CHECKING:
    from ray.serve import Application

DEFAULT_FILE = Path(__file__).resolve().parents[1] / "configs" / "serve.local.yaml"

# Read by Ray when its processes start; the environment wins. CPU per recall over fake channels on two busy cores:
# 42 ms without them, 32 ms with gRPC between replicas, 27 ms with both (p50 39, 34, 26 ms). RAY_SERVE_ENABLE_HA_PROXY
# stays off: it opens replica and statistics ports on every interface and hides who calls. Ray's own niceness, 15, lets
# every other process of the machine go first: on two cores with a load of 17 to 25, recall over HTTP took p50 168 ms
# with it and 134 ms without.
SWITCHES = {
    "RAY_SERVE_USE_GRPC_BY_DEFAULT": "1",
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    "RAY_worker_niceness": "0",
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
    wrong file, or when a deployment cannot start, with its reason (for instance another embedding model).
    """
    for name, value in SWITCHES.items():
        os.environ.setdefault(name, value)
    from ray import serve

    from deployments.app import compose

    plan = read_serve_file(serve_file)
    options = {"host": "127.0.0.1", "port": 8000, **plan.http_options}
    options |= {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    if options["port"] == 0:
        options["port"] = free_port(options["host"])
    with _quiet("ray.serve"):
        application = compose(settings, plan.numbers)
    with _ray(settings), _quiet("ray.serve"):
        try:
            serve.start(
                proxy_location=plan.proxy_location, http_options=options, logging_config=dict(plan.logging_config)
            )
            deploy(application, plan.name, plan.route_prefix, plan.logging_config)
            yield f"http://{_shown(options['host'])}:{options['port']}"
        finally:
            with _unsaid():
                serve.shutdown()


def deploy(
    application: Application, name: str, route_prefix: str, logging_config: Mapping[str, Any] | None = None
) -> None:
    """Deploy and wait until every deployment runs. Raises ConfigError with the reason of each that cannot start.

    Replicas log as `logging_config` says; what Serve was started with holds for its controller and proxy only.
    """
    from ray import serve

    try:
        serve.run(application, name=name, route_prefix=route_prefix, logging_config=dict(logging_config or {}))
    except RuntimeError as error:
        status = serve.status().applications.get(name)
        deployments = status.deployments if status else {}
        reasons = [f"{part}: {_last_line(one.message)}" for part, one in deployments.items() if one.message]
        raise ConfigError("; ".join(reasons) or str(error)) from None


def _last_line(message: str) -> str:
    """Serve reports a constructor's failure as a traceback, whose last line is the exception."""
    return message.strip().splitlines()[-1].strip()


@contextmanager
def _ray(settings: Settings) -> Iterator[None]:
    """A Ray in this process: the running one, or one for the time of the block."""
    import ray

    if ray.is_initialized():
        yield
        return
    ray.init(
        address="local",
        num_cpus=settings.pipeline.logical_cpus,
        object_store_memory=settings.pipeline.object_store_mb * 1024 * 1024,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    try:
        yield
    finally:
        with _unsaid():
            ray.shutdown()


@contextmanager
def _unsaid() -> Iterator[None]:
    """Ray prints on stdout that it had to stop Serve's controller, as if something were wrong."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Only warnings of this logger; the rest is in the session's log files anyway."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


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


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host
