"""DESIGN §§4 to 6 through the real HTTP API, over the memory and the SQLite ledger."""
