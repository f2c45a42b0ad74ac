"""Command line: `python -m suite COMMAND`; see `suite.front.commands`."""

import sys

from suite.front.commands import main

if __name__ == "__main__":
    sys.exit(main())
