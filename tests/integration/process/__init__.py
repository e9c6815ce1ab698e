"""Tests that start processes or run scripts."""
