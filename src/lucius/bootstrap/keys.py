"""Secrets that sign tokens and webhooks: from the settings, shared by replicas, or generated in the data directory."""

import base64
import secrets
from pathlib import Path

from msgspec.structs import replace

from lucius.bootstrap.settings import Settings
from lucius.durable_files import make_folder, write_file
from lucius.ports.config import EXAMPLE_KEYS, MIN_API_KEY_CHARS, ApiKey
from lucius.ports.errors import SettingsError
from lucius.ports.peers import SharedSecrets
from lucius.private_files import FILE_MODE, FOLDER_MODE
from lucius.usecases.access.auth import dev_key, hash_key
from lucius.usecases.callbacks.tokens import MIN_SECRET_BYTES


async def with_shared_secrets(settings: Settings, shared: SharedSecrets | None) -> Settings:
    """Fill secrets missing in the settings from the ledger that replicas share, so that all use the same ones."""
    if shared is None:
        return settings
    tokens, webhooks = settings.token_secrets, settings.webhook_secrets
    if not tokens:
        tokens = (await shared.secret("token", secrets.token_hex(32)),)
    if "DEFAULT" not in webhooks:
        webhooks = {**webhooks, "DEFAULT": await shared.secret("webhook", _new_webhook_secret())}
    master = settings.webhook_master or await shared.secret("webhook-master", _new_webhook_secret())
    return replace(settings, token_secrets=tokens, webhook_secrets=webhooks, webhook_master=master)


def started_keys(settings: Settings) -> tuple[ApiKey, ...]:
    """Return the API key from the environment. Outside `dev`, raises SettingsError if it is easy to guess."""
    key = settings.dev_api_key
    if not key:
        return ()
    if not settings.dev and (len(key) < MIN_API_KEY_CHARS or hash_key(key) in EXAMPLE_KEYS):
        raise SettingsError(
            f"LUCIUS_DEV_API_KEY: the key is known from an example, or shorter than {MIN_API_KEY_CHARS} characters, "
            "which only `lucius dev` allows; `openssl rand -hex 24` makes a good one"
        )
    return (dev_key(key),)


def token_secrets(settings: Settings) -> tuple[bytes, ...]:
    """Return the token secrets of the settings, or one generated once and kept in the data directory.

    Raises SettingsError for a secret that is too short.
    """
    if any(len(secret) < MIN_SECRET_BYTES for secret in settings.token_secrets):
        raise SettingsError(f"LUCIUS_TOKEN_SECRET: each secret needs at least {MIN_SECRET_BYTES} characters")
    if settings.token_secrets:
        return tuple(secret.encode() for secret in settings.token_secrets)
    path = settings.data_dir / "token.secret"
    kept = path.read_bytes() if path.exists() else b""
    return (kept if len(kept) >= MIN_SECRET_BYTES else _new_secret(path, secrets.token_hex(32)),)


def webhook_secrets(settings: Settings) -> dict[str, str]:
    """Return the webhook secrets of the settings, with a generated default so that no webhook is sent unsigned.

    The generated secret is kept in the data directory.
    """
    path = settings.webhook_secret_file
    if path is None:
        return settings.webhook_secrets
    kept = path.read_text().strip() if path.exists() else ""
    return {**settings.webhook_secrets, "DEFAULT": kept or _new_secret(path, _new_webhook_secret()).decode()}


def webhook_master(settings: Settings) -> str:
    """Return the master secret of the settings, or one generated once and kept in the data directory."""
    if settings.webhook_master:
        return settings.webhook_master
    path = settings.data_dir / "webhook-master.secret"
    kept = path.read_text().strip() if path.exists() else ""
    return kept or _new_secret(path, _new_webhook_secret()).decode()


def _new_webhook_secret() -> str:
    return f"whsec_{base64.b64encode(secrets.token_bytes(32)).decode()}"


def _new_secret(path: Path, made: str) -> bytes:
    """Write a secret to `path` atomically: a half-written one would make every later start fail."""
    make_folder(path.parent, FOLDER_MODE)
    secret = made.encode()
    write_file(path, secret, mode=FILE_MODE)
    return secret
