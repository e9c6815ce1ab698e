"""The parts of the expressions: what surrounds the CEL library so that the core can rely on it.

`tree` an expression as it was parsed, and what it reads · `cost` how much work its evaluation can be ·
`results` values as plain JSON, faults as sentences · `templates` text with expressions in it. Used by `expressions`
only.
"""
