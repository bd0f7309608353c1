"""`gt config`: every setting, its default and what it does."""

from __future__ import annotations

from gt import config
from gt.command_line import Parser


def main(argv: list[str] | None = None) -> int:
    """Print the settings."""
    Parser(prog="gt config", description="List the settings: environment variables.").parse_args(argv)
    rows = [(f"{variable}={default}", doc) for variable, default, doc in config.settings()]
    width = max(len(name) for name, _ in rows)
    for name, doc in rows:
        print(f"{name:<{width}}  {doc}")
    return 0
