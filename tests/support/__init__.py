"""Helpers that several test folders share. Contains no tests."""
