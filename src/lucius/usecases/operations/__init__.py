"""Operator actions: cancel, pause, resume, retry, and the acts on review items."""
