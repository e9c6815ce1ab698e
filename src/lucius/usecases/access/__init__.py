"""API keys, scopes and secrets: authentication and authorisation."""
