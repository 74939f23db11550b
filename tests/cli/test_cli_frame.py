"""The frame of the command line: start-up, exit statuses, shared options, JSON errors, files to start from."""

import json
import os
import resource
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner

from recall.cli import app
from recall.commands.tested import OPTIONAL, TESTED

ROOT = Path(__file__).parents[2]
run = CliRunner().invoke


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No recall.yaml in reach, and no variable that names one."""
    monkeypatch.chdir(tmp_path)
    for name in ("RECALL_CONFIG", "RECALL_DATA_DIR", "RECALL_ENTITIES", "RECALL_TOKENS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "200")


def test_help_imports_no_engine_and_no_client() -> None:
    heavy = ("ray", "pydantic", "numpy", "pyarrow", "lancedb", "fastapi", "pipelines", "deployments", "recall.tools")
    code = (
        "import sys\nfrom typer.testing import CliRunner\nfrom recall.cli import app\n"
        "answer = CliRunner().invoke(app, ['--help'])\n"
        "assert answer.exit_code == 0, answer.output\n"
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"


def test_help_costs_less_than_half_a_second() -> None:
    """Processor time, not wall time: other work on the machine must not fail the test."""
    code = "import sys; sys.argv = ['recall', '--help']; from recall.cli import main; main()"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], capture_output=True, cwd=ROOT, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.5


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        *(
            [name, "--help"]
            for name in ("init", "import", "backfill", "query", "show", "doctor", "serve", "mcp", "demo")
        ),
        ["tool", "--help"],
        *(
            ["tool", name, "--help"]
            for name in ("recall", "recall_fused", "vector_similar", "search", "graph_traverse", "get")
        ),
    ],
    ids=" ".join,
)
def test_every_command_explains_itself(arguments: list[str]) -> None:
    answer = run(app, arguments)
    assert answer.exit_code == 0
    assert "Usage:" in answer.output
    if arguments != ["--help"] and arguments != ["tool", "--help"]:
        assert "--json" in answer.output


def test_version_is_the_package_version() -> None:
    answer = run(app, ["--version"])
    assert (answer.exit_code, answer.output.strip()) == (0, version("ray-recall"))


@pytest.mark.parametrize(
    "arguments", [["query"], ["query", "x", "--budget", "many"], ["nonsense"], ["query", "x", "--colour", "red"]]
)
def test_wrong_usage_exits_with_2(arguments: list[str]) -> None:
    assert run(app, arguments).exit_code == 2


def test_an_error_is_one_line_on_stderr_and_exit_status_1() -> None:
    answer = run(app, ["show", "--config", "missing.yaml"])
    assert answer.exit_code == 1
    assert answer.stdout == ""
    (line,) = answer.stderr.splitlines()
    assert line.startswith("error: config_error: ")
    assert line.endswith("missing.yaml: no such file")


def test_an_error_as_json_has_the_shape_of_http() -> None:
    answer = run(app, ["show", "--config", "missing.yaml", "--json"])
    problem = json.loads(answer.stderr)["error"]
    assert problem["code"] == "config_error"
    assert "no such file" in problem["message"]


def test_debug_adds_the_traceback() -> None:
    answer = run(app, ["--debug", "show", "--config", "missing.yaml"])
    assert answer.exit_code == 1
    assert "Traceback" in answer.stderr
    assert "error: config_error:" in answer.stderr


def test_shared_options_work_before_and_after_the_name_and_the_last_wins() -> None:
    before = run(app, ["--config", "one.yaml", "show"])
    after = run(app, ["show", "--config", "one.yaml"])
    both = run(app, ["--config", "zero.yaml", "show", "--config", "one.yaml"])
    assert before.stderr == after.stderr == both.stderr
    assert "one.yaml" in before.stderr


def test_options_win_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECALL_CONFIG", "env.yaml")
    assert "env.yaml" in run(app, ["show"]).stderr
    assert "option.yaml" in run(app, ["show", "--config", "option.yaml"]).stderr


def test_an_unknown_key_is_named(tmp_path: Path) -> None:
    (tmp_path / "recall.yaml").write_text("recal: {}\n")
    answer = run(app, ["show"])
    assert answer.exit_code == 1
    assert "recal" in answer.stderr


def test_init_writes_files_that_load_and_never_overwrites_unasked(tmp_path: Path) -> None:
    assert run(app, ["init", "app"]).exit_code == 0
    target = tmp_path / "app" / "entities.yaml"
    assert target.read_text().startswith("#")
    target.write_text("mine")
    refused = run(app, ["init", "app"])
    assert (refused.exit_code, "--force" in refused.stderr) == (1, True)
    assert target.read_text() == "mine"
    assert run(app, ["init", "app", "--force"]).exit_code == 0
    assert target.read_text() != "mine"


def test_init_as_json_lists_what_it_wrote() -> None:
    answer = run(app, ["init", "app", "--json"])
    assert json.loads(answer.stdout)["written"] == [
        os.path.join("app", "recall.yaml"),
        os.path.join("app", "entities.yaml"),
    ]


def test_tested_versions_are_the_constraints() -> None:
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split())
    assert {name: pinned[name] for name in TESTED} == dict(TESTED)
    assert set(TESTED) >= OPTIONAL
