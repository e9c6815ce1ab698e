"""Metrics, logs and readiness. Metrics and job logs come from durable decisions, never from uncommitted changes."""
