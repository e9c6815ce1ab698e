"""Tests of the PostgreSQL ledger on a real server."""
