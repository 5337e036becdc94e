"""`python -m streampair_connectors` is the `streampair` command."""

from streampair_connectors.cli.app import main

if __name__ == "__main__":
    main()
