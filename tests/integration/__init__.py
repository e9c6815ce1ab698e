"""Tests of one real component each: a database, a bus, HTTP, files or processes."""
