"""The generated references of settings and commands agree with the code."""

import subprocess
import sys
from pathlib import Path

import pytest
from scripts import settings_reference as settings

ROOT = Path(__file__).resolve().parents[3]
PAGES = {"settings_reference": "settings.md", "cli_reference": "cli.md"}
INTERNAL = {"LUCIUS_DEV_FILE_ROOTS"}  # set by `lucius dev` for its own processes
NOT_READ_BY_THE_SDK = {"LUCIUS_LOG_LEVEL", "LUCIUS_LOG_FORMAT", "SSL_CERT_FILE", "HTTP_PROXY"}


def write_page(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", f"scripts.{script}", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("script", PAGES)
def test_reference_page_is_current(script: str) -> None:
    checked = write_page(script, "--check")
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize("script", PAGES)
def test_stale_reference_page_is_reported(script: str, tmp_path: Path) -> None:
    other = tmp_path / "page.md"
    committed = (ROOT / "docs" / "reference" / PAGES[script]).read_text(encoding="utf-8")
    other.write_text(committed.replace("LUCIUS_", "LUZIUS_"), encoding="utf-8")
    assert f"is stale: run python -m scripts.{script}" in write_page(script, "--check", "--page", str(other)).stderr


def test_every_setting_of_the_control_plane_is_described() -> None:
    described = [name for texts in settings.CONTROL_PLANE.values() for name in texts]
    assert len(described) == len(set(described))
    assert set(described) == set(settings.control_plane_settings()) - INTERNAL


def test_every_setting_of_services_is_described() -> None:
    assert set(settings.SERVICES) - NOT_READ_BY_THE_SDK == set(settings.service_settings())
    assert set(settings.REFERENCE_SERVICES) == settings.reference_service_settings()
