import pytest

from lucius.services import ServiceSettings, settings_from
from lucius.worker.settings import BadSetting

CHAT = {"LUCIUS_SIS_BASE_URL": "https://models.example/v1/", "LUCIUS_SIS_MODEL": "m", "LUCIUS_SIS_API_KEY": "secret\n"}


def test_an_empty_environment_means_the_best_that_is_installed_and_no_endpoint() -> None:
    assert settings_from({}) == ServiceSettings()


def test_everything_can_be_told() -> None:
    told = {
        "LUCIUS_DEMO_INPUTS": "1",
        "LUCIUS_OCR_ENGINE": "off",
        "LUCIUS_EMBEDDING_MODEL": "hash",
        "LUCIUS_MODEL_THREADS": "3",
        "LUCIUS_SIS_TIMEOUT": "5",
        **CHAT,
    }
    settings = settings_from(told)
    assert (settings.demo_inputs, settings.ocr_engine, settings.embedding_model, settings.threads) == (
        True,
        "off",
        "hash",
        3,
    )
    assert settings.chat is not None
    assert (settings.chat.base_url, settings.chat.model) == ("https://models.example/v1", "m")
    assert (settings.chat.api_key, settings.chat.timeout_seconds) == ("secret", 5)


def test_the_key_is_not_shown() -> None:
    assert "secret" not in repr(settings_from(CHAT))
    assert "secret" not in str(settings_from(CHAT).chat)


@pytest.mark.parametrize(
    "told",
    [
        {"LUCIUS_OCR_ENGINE": "best"},
        {"LUCIUS_MODEL_THREADS": "0"},
        {"LUCIUS_MODEL_THREADS": "many"},
        {"LUCIUS_SIS_TIMEOUT": "nan", **CHAT},
        {**CHAT, "LUCIUS_SIS_BASE_URL": "models.example/v1"},
        {**CHAT, "LUCIUS_SIS_BASE_URL": "https://user:secret@models.example/v1"},
        {**CHAT, "LUCIUS_SIS_BASE_URL": "https://models.example/v1?key=secret"},
        {**CHAT, "LUCIUS_SIS_MODEL": ""},
    ],
)
def test_what_can_not_be_understood_is_refused_by_name(told: dict[str, str]) -> None:
    with pytest.raises(BadSetting, match="LUCIUS_") as refused:
        settings_from(told)
    assert "secret" not in str(refused.value)
