"""The command `streampair`, and `python -m streampair_connectors`."""

import sys
from typing import NoReturn

__all__ = ["main"]


def main() -> NoReturn:
    """Run the command line and exit. Ctrl-C during the imports, which take a second, is no traceback."""
    try:
        from streampair_connectors.cli.app import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
