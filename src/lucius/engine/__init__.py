"""Engines, which drive jobs forward between requests: relay, deadlines, repair, outbound HTTP and Temporal workflows.

Feed inputs to the core through the use cases; hold no rule about states themselves.
"""
