"""`lucius new-service`: consistent names and a complete project. An end-to-end test runs one."""

import ast
import base64
import hashlib
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from lucius.adapters.expressions.expressions import CelTools
from lucius.adapters.protocols.directory import read_protocol
from lucius.cli.main import app
from lucius.scaffold import BadName, Names, names_for, write_project
from lucius.scaffold.names import NAMES_IN_USE
from lucius.scaffold.project import FILES
from lucius.version import __version__

# Folders that some wheels leave behind.
UNIMPORTED = {"build_area", "build_deps", "google-stubs", "kokoro", "tmp"}
LONGEST = "a" * 63 + "z"
SRC = Path(__file__).parents[3] / "src"
TEMPLATES = Path(__file__).parents[3] / "src" / "lucius" / "scaffold" / "templates"


def named(name: str, step_type: str | None = None) -> Names:
    return names_for(name, step_type, __version__)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    write_project(named("invoice-reader"), tmp_path)
    return tmp_path


# Names


@pytest.mark.parametrize(
    ("name", "package", "step_type", "title"),
    [
        ("invoice-reader", "invoice_reader", "INVOICE_READER", "Invoice reader"),
        ("ocr2", "ocr2", "OCR2", "Ocr2"),
        ("a_b-c", "a_b_c", "A_B_C", "A b c"),
        ("match", "match", "MATCH", "Match"),
        (LONGEST, LONGEST, LONGEST.upper(), LONGEST.capitalize()),
    ],
)
def test_package_step_type_and_title_are_derived_from_the_name(
    name: str, package: str, step_type: str, title: str
) -> None:
    names = named(name)
    assert (names.package, names.step_type, names.title) == (package, step_type, title)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "can't be a service name"),
        ("Invoice", "can't be a service name"),
        ("invoice reader", "can't be a service name"),
        ("invoice.reader", "can't be a service name"),
        ("../up", "can't be a service name"),
        ("ocr\n", "can't be a service name"),
        ("größe", "can't be a service name"),
        ("-ocr", "can't be a service name"),
        ("a" * 65, "can't be a service name"),
        ("3d", "begin with a letter"),
        ("ocr-", "end with a letter or digit"),
        ("class", "'class' is a word of the language; try class-service"),
        ("async", "'async' is a word of the language"),
        ("json", "it would hide the module or package 'json'; try json-service"),
        ("lucius", "it would hide the module or package 'lucius'"),
        ("prometheus-client", "it would hide the module or package 'prometheus_client'"),
        ("prometheus--client", "it would hide the module or package 'prometheus_client'"),
        ("tests", "it would hide the module or package 'tests'"),
        ("src", "it would hide the module or package 'src'"),
        ("numpy", "it would hide the module or package 'numpy'"),
        ("attr", "it would hide the module or package 'attr'"),
        ("pyyaml", "it would hide the module or package 'pyyaml'"),
        ("compression", "it would hide the module or package 'compression'"),
        ("pytest-asyncio", "that is how pytest and its plugins are called; try my-pytest-asyncio"),
        ("pytest__cov", "that is how pytest and its plugins are called"),
    ],
)
def test_invalid_name_is_refused_with_the_reason(name: str, why: str) -> None:
    with pytest.raises(BadName, match=re.escape(why)):
        named(name)


@pytest.mark.parametrize(
    "name", ["class", "json", "numpy", "pytest", "pytest-asyncio", f"pytest-{'a' * 42}-{'b' * 14}"]
)
def test_suggested_name_is_valid(name: str) -> None:
    with pytest.raises(BadName) as refused:
        named(name)
    assert named(str(refused.value).rpartition("; try ")[2])


def normalise(name: str) -> str:
    return re.sub(r"[-_.]+", "_", name).lower()


def test_names_of_needed_packages_are_reserved() -> None:
    """Covers Lucius, its extras, the tools and their dependencies, as installed here."""
    needed: set[str] = set()
    waiting = ["lucius", "mypy", "pytest", "pytest-asyncio", "ruff", "hatchling"]
    while waiting:
        name = waiting.pop()
        if normalise(name) in needed:
            continue
        needed.add(normalise(name))
        with suppress(metadata.PackageNotFoundError):
            said = [line for line in metadata.requires(name) or [] if name == "lucius" or "extra ==" not in line]
            waiting += [re.split(r"[^\w.-]", line)[0] for line in said]
    for module, owners in metadata.packages_distributions().items():
        if any(normalise(owner) in needed for owner in owners) and module[0].isalpha():
            needed.add(module.lower())
    assert len(needed) > 30
    assert needed - NAMES_IN_USE <= UNIMPORTED


@pytest.mark.parametrize("step_type", ["", "TWO WORDS", ".HIDDEN", "A/B", "A" * 65, 'A"', "A\n"])
def test_invalid_step_type_is_refused(step_type: str) -> None:
    with pytest.raises(BadName, match="can't be a step type"):
        named("ocr", step_type)


# The project


def test_every_template_is_used_and_every_placeholder_filled_in(project: Path) -> None:
    assert sorted(path.name for path in TEMPLATES.iterdir()) == sorted(f"{name}.tmpl" for name in FILES)
    for path in project.rglob("*"):
        assert "@@" not in str(path)
        assert path.is_dir() or "@@" not in path.read_text()


@pytest.mark.parametrize("name", ["no", "null-1", LONGEST])
def test_generated_protocol_is_valid_and_names_service_and_step(tmp_path: Path, name: str) -> None:
    write_project(named(name, "Read.It"), tmp_path)
    protocol = read_protocol(tmp_path / "protocol.yaml", CelTools())
    (step,) = protocol.steps
    assert (protocol.request_type, step.step_type, step.service, step.step_id) == ("Read.It", "Read.It", name, name)


def test_protocol_and_parameters_agree(project: Path) -> None:
    (step,) = yaml.safe_load((project / "protocol.yaml").read_text())["steps"]
    top = step["payload_schema"]["properties"]["top"]
    module = (project / "src/invoice_reader/service.py").read_text()
    assert f"msgspec.Meta(ge={top['minimum']}, le={top['maximum']})] = {top['default']}" in module


def test_generated_files_can_be_parsed(project: Path) -> None:
    for path in project.rglob("*.py"):
        ast.parse(path.read_text())
    meta = tomllib.loads((project / "pyproject.toml").read_text())
    assert meta["project"]["name"] == "invoice-reader"
    assert f"lucius>={__version__}" in meta["project"]["dependencies"]
    ci = yaml.safe_load((project / ".github/workflows/ci.yml").read_text())
    assert ci["jobs"]["check"]["steps"][-1] == {"run": "make check test"}


def instructions(dockerfile: str) -> list[tuple[str, str]]:
    """Return the instructions of the Dockerfile, with continued lines joined."""
    lines = re.sub(r"\\\n\s*", "", dockerfile).splitlines()
    said = [line.split(maxsplit=1) for line in lines if line.strip() and not line.startswith("#")]
    return [(word, rest) for word, rest in said]


def test_image_is_pinned_non_root_and_gets_the_stop_signal(project: Path) -> None:
    said = instructions((project / "Dockerfile").read_text())
    bases = [rest for word, rest in said if word == "FROM"]
    assert len(bases) == 2
    assert all(re.match(r"python:3\.\d+\.\d+-slim-\w+( AS build)?$", base) for base in bases)
    last_stage = said[[word for word, _ in said].index("FROM", 1) :]
    told = dict(last_stage)
    assert told["USER"] == "10001"  # numeric, so that Kubernetes can verify that it is not root
    assert json.loads(told["ENTRYPOINT"]) == ["/venv/bin/python", "-m", "invoice_reader"]  # exec form: no shell between
    assert told["STOPSIGNAL"] == "SIGTERM"
    probe = told["HEALTHCHECK"].partition("CMD ")[2]
    assert "/healthz" in json.loads(probe)[-1]
    assert "LUCIUS_DATA_DIR=/data" in told["ENV"]
    assert told["VOLUME"] == "/data"


def test_image_is_built_from_existing_files_that_are_not_ignored(project: Path) -> None:
    said = instructions((project / "Dockerfile").read_text())
    copied = {name for word, rest in said if word == "COPY" and "--from" not in rest for name in rest.split()[:-1]}
    assert copied == {"wheels", "pyproject.toml", "README.md", "src"}
    assert all((project / name).exists() for name in copied)
    ignore = (project / ".dockerignore").read_text().split()
    assert ignore[0] == "*"
    assert {line[1:] for line in ignore if line.startswith("!")} == copied


# The command


def new_service(*args: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["new-service", *args])
    return done.exit_code, " ".join(done.output.split())


def test_project_goes_into_a_folder_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, said = new_service("invoice-reader")
    assert code == 0
    assert "src/invoice_reader/service.py" in said
    assert "make setup test" in said
    assert (tmp_path / "invoice-reader" / "src" / "invoice_reader" / "service.py").is_file()


def test_step_type_and_folder_can_be_chosen(tmp_path: Path) -> None:
    assert new_service("invoice-reader", "--step-type", "READ", "--dir", str(tmp_path / "here"))[0] == 0
    assert '@service.step("READ", params=Params)' in (tmp_path / "here/src/invoice_reader/service.py").read_text()


def test_nonempty_folder_is_left_alone_unless_forced(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "README.md").write_text("mine")
    code, said = new_service("ocr-fast", "--dir", str(tmp_path))
    assert (code, len(list(tmp_path.iterdir()))) == (2, 2)
    assert "not empty" in said
    assert "--force" in said
    assert new_service("ocr-fast", "--dir", str(tmp_path), "--force")[0] == 0
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert (tmp_path / "README.md").read_text().startswith("# Ocr fast")


def test_unwritable_target_and_invalid_name_are_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, said = new_service("ocr-fast", "--dir", str(tmp_path / "file"))
    assert (code, "is not a folder" in said) == (2, True)
    code, said = new_service("ocr-fast", "--dir", str(tmp_path / "file" / "below"))
    assert (code, "can't write" in said) == (2, True)
    code, said = new_service("Ocr")
    assert (code, "can't be a service name" in said) == (2, True)


# The wheel of Lucius


def test_project_contains_a_wheel_of_the_installed_lucius(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["new-service", "invoice-reader", "--dir", str(tmp_path)])
    assert result.exit_code == 0, result.stderr
    wheel = tmp_path / "wheels" / f"lucius-{__version__}-py3-none-any.whl"
    assert f"wheels/{wheel.name}" in (tmp_path / "Makefile").read_text()
    assert "*.whl" not in (tmp_path / ".gitignore").read_text()
    with zipfile.ZipFile(wheel) as packed:
        assert packed.testzip() is None
        names = set(packed.namelist())
        recorded = {line.split(",")[0]: line for line in packed.read(_info("RECORD")).decode().splitlines()}
        assert set(recorded) == names
        for name in names - {_info("RECORD")}:
            digest = base64.urlsafe_b64encode(hashlib.sha256(packed.read(name)).digest()).rstrip(b"=").decode()
            assert recorded[name] == f"{name},sha256={digest},{packed.getinfo(name).file_size}"
    sources = {path.relative_to(SRC).as_posix() for path in (SRC / "lucius").rglob("*") if path.is_file()}
    assert {name for name in sources if "__pycache__" not in name} <= names


def test_setup_of_a_project_installs_its_wheel_without_an_index(tmp_path: Path) -> None:
    """The recipe and pip are the real ones; of what it asks for, only the wheel, as the rest needs an index."""
    project, site = tmp_path / "invoice-reader", tmp_path / "site"
    assert new_service("invoice-reader", "--dir", str(project))[0] == 0
    (project / ".venv").mkdir()
    _write_pip(tmp_path / "bin" / "pip", site)
    made = subprocess.run(
        ["make", "setup", "PYTHON=true", f"BIN={tmp_path / 'bin'}"],
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    (found,) = metadata.distributions(path=[str(site)])
    ours = metadata.distribution("lucius")
    assert (found.metadata["Name"], found.version, found.requires) == ("lucius", __version__, ours.requires)
    assert {entry.name for entry in found.entry_points} == {entry.name for entry in ours.entry_points}
    said = _run_from(site, "-c", "import lucius.worker; print(lucius.__file__)")
    assert said.startswith(str(site))
    assert _run_from(site, str(site / "bin" / "lucius"), "--version") == f"lucius {__version__}\n"


def _write_pip(path: Path, site: Path) -> None:
    """Write a pip that installs the wheel among its arguments into a folder, without an index."""
    python = Path(sys.base_prefix) / "bin" / "python3"
    pip = f"'{python}' -m pip --isolated --disable-pip-version-check"
    path.parent.mkdir()
    path.write_text(
        '#!/bin/sh\nfor given in "$@"; do case "$given" in *.whl) wheel=$given ;; esac; done\n'
        f"exec {pip} install --quiet --no-index --no-deps --target '{site}' \"$wheel\"\n"
    )
    path.chmod(0o755)


def _run_from(site: Path, *arguments: str) -> str:
    env = os.environ | {"PYTHONPATH": str(site)}
    done = subprocess.run([sys.executable, *arguments], env=env, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.parametrize(
    ("dev", "url"), [(None, "http://127.0.0.1:8080"), ('{"url":"http://127.0.0.1:9","pid":1}', "http://127.0.0.1:9")]
)
def test_make_run_uses_url_key_and_folders_of_dev(tmp_path: Path, dev: str | None, url: str) -> None:
    write_project(named("invoice-reader"), tmp_path)
    (tmp_path / ".lucius").mkdir()
    (tmp_path / ".lucius" / "dev.key").write_text("the-key\n")
    if dev is not None:
        (tmp_path / ".lucius" / "dev.json").write_text(dev)
    done = tmp_path / ".venv" / ".done"
    done.parent.mkdir()
    wheel = tmp_path / "wheels" / f"lucius-{__version__}-py3-none-any.whl"
    wheel.touch()
    done.touch()
    show = "python -c 'import os; print({n: v for n, v in os.environ.items() if n.startswith(\"LUCIUS_\")})'"
    env = {name: value for name, value in os.environ.items() if not name.startswith("LUCIUS_")}
    ran = subprocess.run(
        ["make", "--no-print-directory", "-s", "run", f"SERVICE={Path(sys.executable).parent}/{show}"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ast.literal_eval(ran.stdout) == {
        "LUCIUS_ORCHESTRATOR_URL": url,
        "LUCIUS_API_KEY": "the-key",
        "LUCIUS_DATA_DIR": ".data",
        "LUCIUS_BLOB_ROOT": ".lucius/blobs",
        "LUCIUS_FILE_ROOTS": str(tmp_path),
    }


def _info(name: str) -> str:
    return f"lucius-{__version__}.dist-info/{name}"
