"""Protocols as data, and their validation."""
