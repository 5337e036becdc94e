"""Sends labelled sample events to a topic at a steady rate, for a look at the dashboard.

    python sample_events.py BOOTSTRAP TOPIC [EVENTS_PER_SECOND] [EVENTS]

The events are River's data set Phishing, over and over; with EVENTS, that many of them and no more.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys

from aiokafka import AIOKafkaProducer
from river import datasets


async def main(bootstrap: str, topic: str, per_second: float = 50.0, events: int | None = None) -> None:
    stream = itertools.chain.from_iterable(datasets.Phishing() for _ in itertools.count())
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, linger_ms=20) as producer:
        start = asyncio.get_running_loop().time()
        for number, (x, y) in enumerate(itertools.islice(stream, events)):
            await asyncio.sleep(start + number / per_second - asyncio.get_running_loop().time())
            await producer.send(topic, json.dumps({**x, "is_phishing": y}).encode())


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    where, topic, *rest = sys.argv[1:]
    asyncio.run(main(where, topic, *map(float, rest[:1]), *map(int, rest[1:])))
