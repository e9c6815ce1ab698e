"""Tools for protocol authors: diagrams of a protocol, and its simulation on a virtual clock.

Pure, like the core: no files, no clock, no network. Expressions are evaluated by `Tools`.
"""
