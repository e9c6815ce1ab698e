"""Ledgers: one package per store, beside modules that all stores share."""
