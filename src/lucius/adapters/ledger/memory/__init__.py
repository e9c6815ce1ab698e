"""Ledger in memory, for simulations and tests."""
