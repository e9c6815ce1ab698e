"""Seen from outside: metrics and logs made from durable decisions, so that they never say what did not happen."""
