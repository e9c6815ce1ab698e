"""Lucius: a durable control plane for document-AI pipelines."""
