"""The rules of the pure core: single stories, every pair of state and input, and random histories."""

import pytest

pytest.register_assert_rewrite("tests.unit.core.builders", "tests.unit.core.invariants")
