"""Temporal engine: one workflow per job runs the same `decide` as the embedded engine and projects into the ledger."""
