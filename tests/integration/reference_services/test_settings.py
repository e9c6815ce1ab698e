import pytest

from lucius.reference_services import ServiceSettings, settings_from
from lucius.worker.settings import BadSetting

CHAT = {"LUCIUS_SIS_BASE_URL": "https://models.example/v1/", "LUCIUS_SIS_MODEL": "m", "LUCIUS_SIS_API_KEY": "secret\n"}


def test_empty_environment_means_the_defaults() -> None:
    assert settings_from({}) == ServiceSettings()


def test_every_setting_can_be_set() -> None:
    told = {
        "LUCIUS_OCR_ENGINE": "off",
        "LUCIUS_EMBEDDING_MODEL": "hash",
        "LUCIUS_MODEL_THREADS": "3",
        "LUCIUS_SIS_TIMEOUT": "5",
        **CHAT,
    }
    settings = settings_from(told)
    assert (settings.ocr_engine, settings.embedding_model, settings.threads) == ("off", "hash", 3)
    assert settings.chat is not None
    assert (settings.chat.base_url, settings.chat.model) == ("https://models.example/v1", "m")
    assert (settings.chat.api_key, settings.chat.timeout_seconds) == ("secret", 5)


def test_api_key_is_not_shown() -> None:
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
def test_invalid_setting_is_refused_naming_its_variable(told: dict[str, str]) -> None:
    with pytest.raises(BadSetting, match="LUCIUS_") as refused:
        settings_from(told)
    assert "secret" not in str(refused.value)
