"""Where the logs and snapshots of lanes lie."""

from streampair_connectors.stores.base import LaneStore, Store
from streampair_connectors.stores.directory import DirectoryLane, DirectoryStore
from streampair_connectors.stores.disk import DiskLane, DiskStore
from streampair_connectors.stores.topic import TopicLane, TopicStore, key_missing, seal_of

__all__ = [
    "DirectoryLane",
    "DirectoryStore",
    "DiskLane",
    "DiskStore",
    "LaneStore",
    "Store",
    "TopicLane",
    "TopicStore",
    "key_missing",
    "seal_of",
]
