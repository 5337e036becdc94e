"""Labels that come late: events and labels joined by time, as a learner would meet them."""

from __future__ import annotations

import copy
import numbers
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from river import base

from streampair.errors import ConfigError
from streampair.evaluation.epochs import unit_of

if TYPE_CHECKING:
    from river import metrics

__all__ = ["delayed_labels", "delayed_progressive_val_score"]


def delayed_labels(
    events: Iterable[tuple[Any, Any, Any]],
    labels: Iterable[tuple[Any, Any, Any]],
    *,
    after: Any,
    absent: Any = None,
    lateness: Any = 0,
    order: str = "wait",
) -> Iterator[tuple[int, Any, Any]]:
    """Iterate over questions and answers, where labels come late, or never.

    Yields what River's `stream.simulate_qa` does: `(i, x, None)` when event number i happens and is to be
    scored, and `(i, x, y)` when it is to be learned with its label. River's function delays the labels of one
    table; this one joins two streams, in which an event may have no label.

    A label is in time for an event of the same id if its moment is from the event's `moment - lateness` to
    `moment + after`. It is used once, by the first such event. The first label that an event gets counts;
    others are used up. An event is *due* at `moment + after + lateness`, when no label can come any more.

    Parameters
    ----------
    events
        `(moment, id, x)`, sorted by moment. Moments are datetimes or numbers, in any unit that is also that
        of `after` and `lateness`; ids are hashable.
    labels
        `(moment, id, y)`, sorted by moment.
    after
        How long a label may take: a number, or a timedelta for datetimes.
    absent
        What an event without a label is learned as when it is due; None: it is not learned.
    lateness
        How long before its event a label may come, and how much longer to wait for labels; as `after`.
    order
        ``"wait"``: an event is learned when it is due, with or without a label, in the order of events.
        ``"arrival"``: it is learned as soon as its label comes, and absences when they are due.

    Yields
    ------
    tuple
        Number of the event, its features, and None or its label. The features of a question are a shallow
        copy.

    Raises
    ------
    ConfigError
        An argument is wrong, events or labels are not sorted by moment or have times in different units, or
        an id or a label is None.

    Notes
    -----
    At the same moment labels come first, then dues, then events. When events and labels have ended, what is
    left is learned, absences too: leave out events whose labels you cannot know yet. Only events that are not
    due, and labels whose event may still come, are kept.

    With ``"arrival"`` a label decides when its event is learned. The guarantee of a private learner does not
    cover that order; use ``"wait"``.

    Examples
    --------
    >>> from streampair.evaluation import delayed_labels
    >>> payments = [(0, "a", {"amount": 9.0}), (1, "b", {"amount": 2.0}), (9, "c", {"amount": 3.0})]
    >>> chargebacks = [(4, "a", True)]
    >>> for i, x, y in delayed_labels(payments, chargebacks, after=5, absent=False):
    ...     print(i, x, y)
    0 {'amount': 9.0} None
    1 {'amount': 2.0} None
    0 {'amount': 9.0} True
    1 {'amount': 2.0} False
    2 {'amount': 3.0} None
    2 {'amount': 3.0} False
    """
    steps = _steps(events, labels, _Rules.checked(after, absent, lateness, order))
    return ((event.number, event.x if learn else copy.copy(event.x), event.y) for event, learn in steps)


def delayed_progressive_val_score(
    events: Iterable[tuple[Any, Any, Any]],
    labels: Iterable[tuple[Any, Any, Any]],
    model: Any,
    metric: metrics.base.Metric,
    *,
    after: Any,
    absent: Any = None,
    lateness: Any = 0,
    order: str = "wait",
) -> metrics.base.Metric:
    """Evaluate a model on events whose labels come late, by the predictions made before they came.

    As River's `evaluate.progressive_val_score` with `moment` and `delay`, for labels that stand apart from
    their events: each event is predicted when it happens, and learned when `delayed_labels` says so. The
    metric compares that first prediction with the label.

    Parameters
    ----------
    events, labels, after, absent, lateness, order
        As in `delayed_labels`.
    model
        A classifier or a regressor with River's interface. It learns.
    metric
        A metric of River. It is updated.

    Returns
    -------
    river.metrics.base.Metric
        `metric`.

    Raises
    ------
    ConfigError
        As in `delayed_labels`, or the metric is not for such a model.

    References
    ----------
    Grzenda, Gomes and Bifet 2020, Delayed labelling evaluation for data streams.

    Examples
    --------
    >>> from streampair import auc, evaluation
    >>> payments = [(t, t, {"amount": float(t % 3)}) for t in range(300)]
    >>> chargebacks = [(t + 30, t, True) for t in range(300) if t % 3 == 2]
    >>> evaluation.delayed_progressive_val_score(
    ...     payments, chargebacks, auc.PairOGD(), evaluation.RollingAUC(300), after=50, absent=False
    ... )
    RollingAUC: 98.19%
    """
    if not metric.works_with(model):
        raise ConfigError(
            f"{type(metric).__name__} is not a metric for {type(model).__name__}",
            fix="give a metric that its works_with accepts",
        )
    probabilities = isinstance(model, base.Classifier) and not getattr(metric, "requires_labels", True)
    predict = model.predict_proba_one if probabilities else model.predict_one
    for event, learn in _steps(events, labels, _Rules.checked(after, absent, lateness, order)):
        if not learn:
            event.prediction = predict(copy.copy(event.x))
            continue
        if event.prediction is not None and event.prediction != {}:
            metric.update(y_true=event.y, y_pred=event.prediction)
        model.learn_one(event.x, event.y)
    return metric


@dataclass(frozen=True)
class _Rules:
    """How long labels may take, and what an event without one is learned as."""

    after: Any
    absent: Any
    lateness: Any
    at_once: bool

    @classmethod
    def checked(cls, after: Any, absent: Any, lateness: Any, order: str) -> _Rules:
        if order not in ("wait", "arrival"):
            raise ConfigError(f"order is {order!r}", fix="give 'wait' or 'arrival'")
        try:
            zero = after - after
            lateness = lateness or zero  # 0 is no time, of datetimes too
            usable = after >= zero and lateness >= zero
        except TypeError:
            usable = False
        if not usable:
            raise ConfigError(
                f"after is {after!r} and lateness {lateness!r}",
                fix="give two numbers of at least 0, or two timedeltas",
            )
        return cls(after, absent, lateness, order == "arrival")


@dataclass(eq=False, slots=True)
class _Event:
    """An event that is not due."""

    number: int
    id: Any
    x: Any
    latest: Any  # the last moment at which its label is in time
    due: Any
    y: Any = None
    prediction: Any = None


@dataclass(eq=False, slots=True)
class _Label:
    """A label that no event had when it came."""

    moment: Any
    id: Any
    y: Any


class _Join:
    """Events that are not due, and labels whose event may still come."""

    def __init__(self) -> None:
        self.waiting: deque[_Event] = deque()  # in the order of events, so of dues
        self._by_id: dict[Any, deque[_Event]] = {}
        self._early: deque[_Label] = deque()
        self._early_by_id: dict[Any, deque[_Label]] = {}

    def label(self, moment: Any, id: Any, y: Any) -> _Event | None:
        """Give a label to the first event for which it is in time; the event, if this is its first label."""
        events = self._by_id.get(id, deque())
        while events and events[0].latest < moment:
            events.popleft()
        if not events:
            label = _Label(moment, id, y)
            self._early.append(label)
            self._early_by_id.setdefault(id, deque()).append(label)
            return None
        if events[0].y is not None:
            return None
        events[0].y = y
        return events[0]

    def event(self, event: _Event, earliest: Any) -> bool:
        """Let an event wait; True if its label is here, since it came from `earliest` on."""
        while self._early and self._early[0].moment < earliest:
            label = self._early.popleft()
            same = self._early_by_id.get(label.id)
            if same and same[0] is label:
                same.popleft()
                if not same:
                    del self._early_by_id[label.id]
        found = self._early_by_id.pop(event.id, None)
        if found:
            event.y = found[0].y
        self.waiting.append(event)
        self._by_id.setdefault(event.id, deque()).append(event)
        return event.y is not None

    def due(self) -> _Event:
        """The first event that is due; it waits no longer."""
        event = self.waiting.popleft()
        events = self._by_id.get(event.id)
        if events and events[0] is event:
            events.popleft()
        if not events:
            self._by_id.pop(event.id, None)
        return event


def _steps(
    events: Iterable[tuple[Any, Any, Any]], labels: Iterable[tuple[Any, Any, Any]], rules: _Rules
) -> Iterator[tuple[_Event, bool]]:
    """Each event when it happens, with False, and when it is learned, with True."""
    after, lateness, at_once = rules.after, rules.lateness, rules.at_once
    events, labels = _checked("event", events, after), _checked("label", labels, after)
    join, number = _Join(), 0
    event, label = next(events, None), next(labels, None)
    if event is not None:
        _check_units(event[0], after, None if label is None else label[0])
    while event is not None or join.waiting:
        kind = _first(event, label, join.waiting[0].due if join.waiting else None)
        if kind == "label":
            assert label is not None
            labelled = join.label(*label)
            if labelled is not None and at_once:
                yield labelled, True
                labelled.x = None
            label = next(labels, None)
        elif kind == "due":
            ended = join.due()
            missing = ended.y is None
            if missing:
                ended.y = rules.absent
            if ended.y is not None and (missing or not at_once):
                yield ended, True
        else:
            assert event is not None
            moment, id, x = event
            happened = _Event(number, id, x, moment + after, moment + after + lateness)
            number += 1
            yield happened, False
            if join.event(happened, moment - lateness) and at_once:
                yield happened, True
                happened.x = None
            event = next(events, None)


def _check_units(event: Any, after: Any, label: Any) -> None:
    """Refuse numbers that are times in two units: labels that come late would count, or none would."""
    unit = _unit(event)
    if unit is None:
        return
    if label is not None and _unit(label) not in (unit, None):
        raise ConfigError(
            f"events look like {unit}, the first is at {event!r}, and labels like {_unit(label)}: {label!r}",
            fix="give the moments of both in one unit",
        )
    if _unit(event + after) != unit:
        raise ConfigError(
            f"events look like {unit}, the first is at {event!r}, and its label may come until after 2100",
            fix=f"give after in {unit}: it is {after!r}",
        )


def _unit(moment: Any) -> str | None:
    return unit_of(float(moment)) if isinstance(moment, numbers.Real) else None


def _first(event: tuple[Any, Any, Any] | None, label: tuple[Any, Any, Any] | None, due: Any) -> str:
    """Return the earliest of the next label, due event and event, in this order at the same moment."""
    try:
        if label is not None and all(
            label[0] <= other for other in (event and event[0], due) if other is not None
        ):
            return "label"
        return "due" if due is not None and (event is None or due <= event[0]) else "event"
    except TypeError as error:
        raise ConfigError(
            f"moments of events and labels cannot be compared: {error}",
            fix="give datetimes with time zones everywhere, or nowhere",
        ) from error


def _checked(name: str, items: Iterable[tuple[Any, Any, Any]], after: Any) -> Iterator[tuple[Any, Any, Any]]:
    """The same, if they are sorted by moment and complete."""
    last = None
    for number, (moment, id, value) in enumerate(items):
        try:
            in_order = moment + after >= moment >= (moment if last is None else last)
        except TypeError as error:
            raise ConfigError(
                f"{name} {number} is at {moment!r}: {error}",
                fix="give numbers everywhere, or datetimes of one kind and timedeltas",
            ) from error
        if not in_order:
            raise ConfigError(
                f"{name} {number} is at {moment!r}, and the one before at {last!r}",
                fix=f"sort {name}s by moment",
            )
        if id is None or (value is None and name == "label"):
            raise ConfigError(
                f"{name} {number} has no {'id' if id is None else 'value'}",
                fix="leave it out, or give it one",
            )
        last = moment
        yield moment, id, value
