import pytest

from tests.unit.services.support import hide


@pytest.fixture
def without_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch)
