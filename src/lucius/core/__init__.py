"""The rules of Lucius as pure values and functions: no I/O, no clock, no randomness.

`decide` is the only place where a job changes state. Nothing here may import anything but the standard
library and msgspec.
"""
