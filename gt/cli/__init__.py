"""The `gt` command."""
