"""`python -m gt.server`: the same as `gt serve`."""

import sys

from gt.cli.serve import main

if __name__ == "__main__":
    sys.exit(main(prog="python -m gt.server"))
