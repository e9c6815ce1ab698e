"""The secrets that sign tokens and webhooks: given, shared by replicas, or our own in the data folder."""

import base64
import os
import secrets
from pathlib import Path

from msgspec.structs import replace

from lucius.ports.peers import SharedSecrets
from lucius.service.tokens import MIN_SECRET
from lucius.settings import Settings, SettingsError


async def with_shared_secrets(settings: Settings, shared: SharedSecrets | None) -> Settings:
    """Replicas need the same: what the environment does not say comes from the ledger that they share."""
    if shared is None:
        return settings
    tokens, webhooks = settings.token_secrets, settings.webhook_secrets
    if not tokens:
        tokens = (await shared.secret("token", secrets.token_hex(32)),)
    if "DEFAULT" not in webhooks:
        webhooks = {**webhooks, "DEFAULT": await shared.secret("webhook", _new_webhook_secret())}
    return replace(settings, token_secrets=tokens, webhook_secrets=webhooks)


def token_secrets(settings: Settings) -> tuple[bytes, ...]:
    """The secrets of the settings, or one of our own that outlives a restart."""
    if any(len(secret) < MIN_SECRET for secret in settings.token_secrets):
        raise SettingsError(f"LUCIUS_TOKEN_SECRET: each secret needs at least {MIN_SECRET} characters")
    if settings.token_secrets:
        return tuple(secret.encode() for secret in settings.token_secrets)
    path = settings.data_dir / "token.secret"
    kept = path.read_bytes() if path.exists() else b""
    return (kept if len(kept) >= MIN_SECRET else _new_secret(path, secrets.token_hex(32)),)


def webhook_secrets(settings: Settings) -> dict[str, str]:
    """The secrets of the settings, and a default of our own that outlives a restart: nothing goes out unsigned."""
    path = settings.webhook_secret_file
    if path is None:
        return settings.webhook_secrets
    kept = path.read_text().strip() if path.exists() else ""
    return {**settings.webhook_secrets, "DEFAULT": kept or _new_secret(path, _new_webhook_secret()).decode()}


def _new_webhook_secret() -> str:
    return f"whsec_{base64.b64encode(secrets.token_bytes(32)).decode()}"


def _new_secret(path: Path, made: str) -> bytes:
    """Whole or not there: a half-written secret would keep every later start from working."""
    path.parent.mkdir(parents=True, exist_ok=True)
    secret = made.encode()
    draft = path.with_suffix(f".{os.getpid()}")
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(secret)
        file.flush()
        os.fsync(file.fileno())
    draft.rename(path)
    return secret
