"""Stores of the logs and snapshots of lanes."""

from streampair_connectors.stores.base import LaneStore, Store
from streampair_connectors.stores.directory import DirectoryLane, DirectoryStore, DiskLane, DiskStore
from streampair_connectors.stores.topic import (
    TopicLane,
    TopicLog,
    TopicStore,
    context_of,
    key_missing,
    seal_of,
)

__all__ = [
    "DirectoryLane",
    "DirectoryStore",
    "DiskLane",
    "DiskStore",
    "LaneStore",
    "Store",
    "TopicLane",
    "TopicLog",
    "TopicStore",
    "context_of",
    "key_missing",
    "seal_of",
]
