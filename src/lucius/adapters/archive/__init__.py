"""Stores for archive files of finished jobs."""
