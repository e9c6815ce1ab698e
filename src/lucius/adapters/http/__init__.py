"""HTTP calls of the engine: the caller, its destination checks, secret placeholders and webhook signatures."""
