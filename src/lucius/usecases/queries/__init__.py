"""Reads for clients and operators: jobs, events, services and backlog."""
