"""All I/O of streampair: Kafka, files, stores, metrics and the command line.

The library itself (`streampair`) is pure: it never opens a file or a socket. This package
connects its lanes to the world. Entry point: :func:`streampair_connectors.cli.app.main`.
"""
