"""Buses, which carry directives to services: `local` (long polls), `memory` and `redis` (streams)."""
