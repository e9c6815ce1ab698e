"""Lucius: a durable control plane for document-AI pipelines."""

__version__ = "0.1.0"
