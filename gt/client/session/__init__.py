"""The connection to a server: sessions, waiting, transfers."""
