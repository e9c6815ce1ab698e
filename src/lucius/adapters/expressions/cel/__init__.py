"""Parts of `expressions`: what the core needs beyond the CEL library.

`tree` the parsed expression and what it reads · `cost` a bound of the evaluation's work · `patterns` the work of
regular expressions · `results` values as plain JSON, faults as sentences · `templates` text with expressions in it ·
`urls` URL templates. Used by `expressions` only.
"""
