"""Interfaces to the outside: ledger, bus, protocol source and others. Fewer than eight methods each, in domain words.

Ports import the core and nothing else; adapters implement them and never import each other.
"""
