"""Versions of protocols: drafts, publication, deprecation and comparison."""
