"""A lane over the directory store, without a broker: what outlives its process lies in files."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from streampair_connectors.codecs.records import json_decoder
from streampair_connectors.config import load_config
from streampair_connectors.stores import DirectoryStore
from streampair_connectors.worker.factory import build_logged_lane, draws_key

from harness.driver import CommittedOffset, Driver
from streampair.engine import LogAppend, LoggedLane, OrderedRecord, Record
from streampair.privacy import NoiseKey


class LaneOnDisk(Driver):
    """A lane of a configuration file, held until `close`.

    Parameters
    ----------
    path
        Of the configuration; the group's register and offset lie beside it.
    topic
        All records that there will ever be; `take` has the lane process the next of them. Those without a
        place lie in the first partition.
    """

    def __init__(self, path: Path, topic: Sequence[Record]) -> None:
        self.config = load_config(path)
        self._all = [_placed(record) for record in topic]
        self._group_file = path.with_name(f"{self.config.app}.group")
        self._directory = DirectoryStore(self.config.state_directory)
        files = self._directory.open(self.config.lane_name)
        try:
            super().__init__(lambda: None, json_decoder(self.config.input), store=files)
        except BaseException:
            files.close()
            raise

    def new_lane(self) -> LoggedLane:
        config, key = self.config, None
        if draws_key(config):
            fresh = not self._directory.lanes(config.app)
            key = NoiseKey(self._directory.secret(f"{config.app}.noise-key", fresh=fresh))
        return build_logged_lane(config, self._decode, noise_key=key)

    def start(self, *, die_after: int | None = None) -> None:
        self.topic = list(self._all)
        if self._group_file.exists():
            self.group = CommittedOffset(**json.loads(self._group_file.read_text()))
        super().start(die_after=die_after)
        del self.topic[self.lane.next_offset or 0 :]

    def _register(self, append: LogAppend) -> None:
        super()._register(append)
        new = self._group_file.with_suffix(".new")
        new.write_text(json.dumps(dataclasses.asdict(self.group)))
        new.replace(self._group_file)

    def take(self, count: int) -> None:
        """Process the next records; what leaves is in `scores`."""
        done = len(self.topic)
        self.topic += self._all[done : done + count]
        self.catch_up()

    def close(self) -> None:
        """Let another process in, as its death would."""
        self.store.close()


def _placed(record: Record) -> OrderedRecord:
    if isinstance(record, OrderedRecord):
        return record
    return OrderedRecord(
        record.offset, record.value, record.key, record.timestamp, partition=0, position=record.offset
    )
