"""Embedded engine: drives jobs from the ledger, without a workflow server."""
