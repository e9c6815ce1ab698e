"""Names that `lucius` itself exports."""

import pytest

import lucius
import lucius.client
import lucius.worker


def test_root_exports_client_and_service() -> None:
    assert lucius.Client is lucius.client.Client
    assert lucius.AsyncClient is lucius.client.AsyncClient
    assert (lucius.Service, lucius.StepContext, lucius.StepResult) == (
        lucius.worker.Service,
        lucius.worker.StepContext,
        lucius.worker.StepResult,
    )
    assert set(lucius.__all__) <= set(dir(lucius))


def test_every_exported_name_exists() -> None:
    assert all(getattr(lucius, name) is not None for name in lucius.__all__)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'lucius' has no attribute 'Cleint'"):
        _ = lucius.Cleint
