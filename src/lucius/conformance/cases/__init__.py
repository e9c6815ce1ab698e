"""Conformance cases by subject. Most use slow steps: see `evidence`."""

from lucius.conformance.case import Case
from lucius.conformance.cases import basics, duplicates, failures, fencing, hostile, outages, politeness, stopping


def all_cases() -> list[Case]:
    """Return all cases in the order in which they are shown."""
    modules = (basics, duplicates, failures, fencing, hostile, outages, stopping, politeness)
    return [case for module in modules for case in module.CASES]
