"""Use cases: load a job, let the core decide, commit once, answer.

Imports the core and the ports. Knows nothing of HTTP, SQL or brokers.
"""
