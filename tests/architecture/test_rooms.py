"""The rooms of the house: who may import whom, how large a module may be, nothing at import time."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("recall", "pipelines", "deployments")
MODULES = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
MAX_LINES = 400
CLIENTS = {
    "lancedb": {"recall/planes/lance.py"},
    "tantivy": {"recall/planes/tantivy.py"},
    "ladybug": {"recall/planes/ladybug.py"},
    "sqlalchemy": {"recall/planes/sql.py"},
    "psycopg": {"recall/planes/sql_postgres.py"},
    "pymilvus": {"recall/planes/milvus.py"},
    "opensearchpy": {"recall/planes/opensearch.py"},
    "nebula3": {"recall/planes/nebula.py"},
}


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def uses(path: Path, package: str) -> bool:
    return any(name == package or name.startswith(package + ".") for name in imports(path))


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_module_is_small_and_says_what_it_owns(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MAX_LINES
    if path.name != "__init__.py" or text.strip():
        assert ast.get_docstring(ast.parse(text)), "a module starts with a docstring"


@pytest.mark.parametrize("path", [p for p in MODULES if name(p).startswith("recall/")], ids=name)
def test_core_knows_no_ray_no_web_and_no_model_framework(path):
    for package in ("ray", "fastapi", "starlette", "uvicorn", "vllm", "torch"):
        assert not uses(path, package)
    if not name(path).startswith(("recall/cli", "recall/commands/")):
        assert not uses(path, "pipelines")
        assert not uses(path, "deployments")


@pytest.mark.parametrize("path", [p for p in MODULES if name(p).startswith("pipelines/")], ids=name)
def test_pipelines_do_not_serve(path):
    for package in ("ray.serve", "deployments", "fastapi", "mcp"):
        assert not uses(path, package)


@pytest.mark.parametrize("path", [p for p in MODULES if name(p).startswith("deployments/")], ids=name)
def test_deployments_do_not_load(path):
    for package in ("ray.data", "pipelines", *CLIENTS):
        assert not uses(path, package)


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_a_store_client_is_imported_by_its_own_plane_only(path):
    for package, owners in CLIENTS.items():
        stems = tuple(owner.removesuffix(".py") for owner in owners)
        if uses(path, package):
            # A plane may be split: `lance.py` and `lance_filters.py` are one room.
            assert name(path).startswith(stems), f"{name(path)} imports {package}"


@pytest.mark.parametrize("path", [ROOT / "recall" / f for f in ("engine.py", "fused.py", "asking.py")], ids=name)
def test_engine_sees_no_store(path):
    assert not any(found.startswith("recall.planes") for found in imports(path))
    assert "recall.settings" not in imports(path)


def test_importing_the_core_imports_neither_ray_nor_a_client():
    heavy = ("ray", "fastapi", "torch", *CLIENTS)
    script = (
        "import recall.engine, recall.fused, recall.tools, recall.settings, recall.planes, sys;"
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"
