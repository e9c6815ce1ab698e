"""Tests of the SQLite ledger on real files."""
