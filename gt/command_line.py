"""The command-line parser of all `gt` commands: argparse, with errors of one line."""

from __future__ import annotations

import argparse
from typing import NoReturn

from gt import config


def nbytes(text: str) -> int:
    """A size as people write it."""
    try:
        return config.nbytes(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; expected a number with K, M, G or T") from None


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that reports a wrong argument in one line, with exit code 2."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; {self.prog} --help shows the options\n")
