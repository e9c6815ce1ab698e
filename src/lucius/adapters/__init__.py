"""Implementations of the ports, such as ledgers and buses. A URL selects one, and only that one is imported.

An adapter imports ports and core, never another adapter; modules that several share (`group_commit`, `page_cursor`) are
not adapters.
"""
