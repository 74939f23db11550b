"""Secrets, which settings name by environment variable and never hold."""

from __future__ import annotations

import os
from collections.abc import Mapping

from recall.errors import ConfigError


def secret(name: str, owner: str, environment: Mapping[str, str] = os.environ) -> str:
    """The value of the variable `name`, which the setting or service `owner` needs. ConfigError when it is not set."""
    try:
        return environment[name]
    except KeyError:
        raise ConfigError(f"{owner}: the environment variable {name} is not set") from None
