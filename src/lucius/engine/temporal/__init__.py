"""The Temporal engine: a workflow for each job runs the same `decide`; the ledger is what people read."""
