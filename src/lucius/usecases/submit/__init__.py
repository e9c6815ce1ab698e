"""Submission, from the bytes of a command to a durable job; a refusal creates nothing."""
