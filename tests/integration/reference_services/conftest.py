import pytest

from tests.integration.reference_services.support import hide


@pytest.fixture
def without_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch)
