"""Tests of outbound HTTP against a real server."""
