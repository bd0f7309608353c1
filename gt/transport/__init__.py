"""How messages travel: their structs, their bytes, sockets, and an in-memory channel."""
