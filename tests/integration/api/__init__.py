"""Commands, callbacks, queries and operations through the real HTTP API, over the memory and the SQLite ledger."""
