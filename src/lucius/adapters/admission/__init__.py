"""Admission caches, which remember for a moment which counters the ledger found full."""
