"""`python -m penstock`: the command line."""

import sys

from penstock.console.cli import main

if __name__ == "__main__":
    sys.exit(main())
