"""`streampair demo --late-labels`: payments are learned once their chargebacks have had time to come."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any

import msgspec

from streampair_connectors.cli.demo import Demo, ReadBack
from streampair_connectors.config import Config
from streampair_connectors.kafka import Message, Partition, RecordReader

__all__ = ["LateDemo"]

PAYMENTS = 2400
LABELS_TOPIC = "chargebacks"
DAY_SECONDS = 0.1  # ten days pass in a second
AFTER_DAYS = 30
_SLOWEST_DAYS = 45  # of a chargeback; about one in four comes too late


class LateDemo(Demo):
    """Synthetic payments, one in ten of them fraud; the chargeback of a fraud comes up to 45 days later."""

    data = "payments"
    topic = "payments"
    columns = ("AUC", "last fifth", "too late", "epsilon", "regret")

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._delays: dict[int, float] = {}  # days until the chargeback, by the number of the payment
        self._too_late: dict[str, int] = {}  # chargebacks sent on, by application
        super().__init__(*arguments, **options)
        self._chargebacks = sorted(
            (number / self._rate + days * DAY_SECONDS, number) for number, days in self._delays.items()
        )

    def _made(self, rng: random.Random) -> list[tuple[dict[str, Any], bool]]:
        events = [_payment(rng) for _ in range(PAYMENTS)]
        for number, (_, fraud) in enumerate(events):
            if fraud:
                self._delays[number] = _SLOWEST_DAYS * rng.random() ** 1.5
        return events

    def _learners(self) -> dict[str, dict[str, Any]]:
        return {
            "demo-pairogd": {"class": "streampair.auc.PairOGD"},
            "demo-pairftrl": self._private(),
            "demo-forest": {"class": "streampair.auc.Forest", "options": {"trees": 20}},
        }

    def _tables(self) -> dict[str, Any]:
        return {
            "input": {},
            "labels": {
                "topic": LABELS_TOPIC,
                "id": "key",
                "value": True,
                "after": f"{round(AFTER_DAYS * DAY_SECONDS * 1000)}ms",
                "absent": False,
                "lateness": "200ms",
            },
        }

    def _topics(self, config: Config) -> list[str]:
        assert config.late_labels_topic is not None
        return [*super()._topics(config), config.late_labels_topic]

    def _shared_topics(self) -> list[str]:
        return [self.topic, LABELS_TOPIC]

    def _introduction(self) -> str:
        return (
            f"{PAYMENTS} payments at {self._rate:g}/s into topic {self.topic!r} of an embedded broker, "
            f"{len(self._delays)} of them fraud; their chargebacks come up to {_SLOWEST_DAYS} days later "
            f"(a second is {1 / DAY_SECONDS:.0f} days), and a payment is learned after {AFTER_DAYS} days"
        )

    def _all_sent(self, events: int) -> bool:
        return super()._all_sent(events) and not self._chargebacks

    def _messages(self, numbers: range, seconds: float) -> Iterator[tuple[Partition, list[Message]]]:
        encode = msgspec.json.encode
        if numbers:
            yield (
                Partition(self.topic, 0),
                [Message(_id(number), encode(self._events[number][0])) for number in numbers],
            )
        due = [number for moment, number in self._chargebacks if moment <= seconds and number < numbers.stop]
        if due:
            yield Partition(LABELS_TOPIC, 0), [Message(_id(number), b"{}") for number in due]
            sent = set(due)
            self._chargebacks = [each for each in self._chargebacks if each[1] not in sent]

    def _label(self, offset: int, event: Any) -> bool:
        return self._events[offset][1]

    def _learned(self, apps: list[ReadBack]) -> bool:
        return all(self._count_learned(app) == len(self._events) for app in apps)

    def _count_learned(self, app: ReadBack) -> int:
        gauges = self._gauges(app)
        return 0 if gauges is None else int(gauges.events["learned"])

    async def _collect(self, apps: list[ReadBack]) -> None:
        await super()._collect(apps)
        lookup = RecordReader(self._kafka)
        try:
            for app in apps:
                topic = app.config.late_labels_topic
                assert topic is not None
                first, end = (await lookup.spans([Partition(topic, 0)]))[0]
                self._too_late[app.config.app] = end - first
        finally:
            await lookup.stop()

    def _result(self, apps: list[ReadBack]) -> dict[str, Any]:
        result = super()._result(apps)
        for row, app in zip(result["learners"], apps, strict=True):
            row["learned"] = self._count_learned(app)
            row["labels_too_late"] = self._too_late[app.config.app]
        return {**result, "fraud": len(self._delays)}

    def _cells(self, row: dict[str, Any]) -> dict[str, str]:
        return {**super()._cells(row), "too late": str(row["labels_too_late"])}

    def _caption(self) -> str:
        return (
            f"AUC: includes the first {AFTER_DAYS} days, when nothing was learned yet. Too late: chargebacks "
            f"sent on to APP-late-labels so far. {super()._caption()}"
        )


def _id(number: int) -> bytes:
    return b"payment-%d" % number


def _payment(rng: random.Random) -> tuple[dict[str, Any], bool]:
    """Features in [0, 1], and whether it is fraud."""
    fraud = rng.random() < 0.1
    shift = 0.9 if fraud else 0.0

    def share(weight: float) -> float:
        return round(1 / (1 + math.exp(-rng.gauss(weight * shift - 0.5, 0.8))), 4)

    x = {"amount": share(1.2), "distance": share(1.0), "tries": share(1.5)}
    x["new_device"] = float(rng.random() < (0.6 if fraud else 0.15))
    x["night"] = float(rng.random() < (0.5 if fraud else 0.3))
    return x, fraud
