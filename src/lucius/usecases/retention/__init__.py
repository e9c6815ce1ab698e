"""Archives finished jobs and removes them from the ledger."""
