"""Validation of protocols: one module for each aspect; `protocol` runs all checks."""
