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

__all__ = ["LabelJoin", "PendingEvent", "delayed_labels", "delayed_progressive_val_score"]


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
        ``"arrival"``: it is learned as soon as its label comes. An event without a label, or whose labels all
        came before it, is learned when it is due.

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
    join = LabelJoin(after=after, absent=absent, lateness=lateness, order=order)
    return (
        (event.number, copy.copy(event.x) if what == "score" else event.x, event.y)
        for what, event in join.steps(events, labels)
    )


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
    RollingAUC: 98.47%
    """
    if not metric.works_with(model):
        raise ConfigError(
            f"{type(metric).__name__} is not a metric for {type(model).__name__}",
            fix="give a metric that its works_with accepts",
        )
    probabilities = isinstance(model, base.Classifier) and not getattr(metric, "requires_labels", True)
    predict = model.predict_proba_one if probabilities else model.predict_one
    join = LabelJoin(after=after, absent=absent, lateness=lateness, order=order)
    for what, event in join.steps(events, labels):
        if what == "score":
            event.prediction = predict(copy.copy(event.x))
            continue
        if event.prediction is not None and event.prediction != {}:
            metric.update(y_true=event.y, y_pred=event.prediction)
        model.learn_one(event.x, event.y)
    return metric


@dataclass(eq=False, slots=True)
class PendingEvent:
    """An event that is not due.

    Attributes
    ----------
    number
        How many events came before.
    id, x
        As given; `x` is None once the event was learned.
    y
        Its label; None: none has come.
    moment, latest, due
        When it happened, the last moment at which its label is in time, and when it is due.
    learned
        Whether it was learned when its label came.
    prediction
        For the caller.
    """

    number: int
    id: Any
    x: Any
    moment: Any
    latest: Any
    due: Any
    y: Any = None
    learned: bool = False
    prediction: Any = None


@dataclass(eq=False, slots=True)
class _Label:
    """A label that no event had when it came."""

    moment: Any
    id: Any
    y: Any


class LabelJoin:
    """Joins events with labels, for `delayed_labels` and for replays of files.

    It keeps events that are not due, and labels whose event may still come.

    Parameters
    ----------
    after, absent, lateness, order
        As in `delayed_labels`.

    Attributes
    ----------
    waiting
        The events that are not due, in their order.
    early
        The labels that no event had when they came, and whose event may still come.
    repeated
        How many further labels there were for events that had one.

    Raises
    ------
    ConfigError
        An argument is wrong.

    Examples
    --------
    >>> from streampair.evaluation.label_delay import LabelJoin
    >>> join = LabelJoin(after=5, absent=False)
    >>> steps = join.steps([(0, "a", {}), (9, "b", {})], [(4, "a", True)])
    >>> [(what, event.number, event.y) for what, event in steps]
    [('score', 0, None), ('due', 0, True), ('score', 1, None), ('due', 1, False)]
    """

    def __init__(self, *, after: Any, absent: Any = None, lateness: Any = 0, order: str = "wait") -> None:
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
        self._after, self._absent, self._lateness = after, absent, lateness
        self._at_once = order == "arrival"
        self.waiting: deque[PendingEvent] = deque()  # in the order of events, so of dues
        self._by_id: dict[Any, deque[PendingEvent]] = {}
        self.early: deque[_Label] = deque()
        self._early_by_id: dict[Any, deque[_Label]] = {}
        self.repeated = 0

    def steps(
        self, events: Iterable[tuple[Any, Any, Any]], labels: Iterable[tuple[Any, Any, Any]]
    ) -> Iterator[tuple[str, PendingEvent]]:
        """Iterate over what happens to events.

        Parameters
        ----------
        events, labels
            As in `delayed_labels`; each is read as far as the next step needs it.

        Yields
        ------
        tuple
            What happens, and the event: `"score"` when it comes, and when it is to be learned `"label"` if
            that is since its label came, else `"due"`.

        Raises
        ------
        ConfigError
            As in `delayed_labels`.
        """
        after, lateness = self._after, self._lateness
        events, labels = _checked("event", events, after), _checked("label", labels, after)
        number = 0
        event, label = next(events, None), next(labels, None)
        if event is not None:
            _check_units(event[0], after, None if label is None else label[0])
        while event is not None or self.waiting:
            kind = _first(event, label, self.waiting[0].due if self.waiting else None)
            if kind == "label":
                assert label is not None
                labelled = self._label(*label)
                if labelled is not None and self._at_once:
                    yield from _learned(labelled)
                label = next(labels, None)
            elif kind == "due":
                ended = self._due()
                if ended.y is None:
                    ended.y = self._absent
                if ended.y is not None and not ended.learned:
                    yield "due", ended
            else:
                assert event is not None
                moment, id, x = event
                happened = PendingEvent(number, id, x, moment, moment + after, moment + after + lateness)
                number += 1
                yield "score", happened
                if self._event(happened, moment - lateness) and self._at_once:
                    yield from _learned(happened)
                event = next(events, None)

    def _label(self, moment: Any, id: Any, y: Any) -> PendingEvent | None:
        """Give a label to the first event for which it is in time; the event, if this label counts for it."""
        events = self._by_id.get(id, deque())
        while events and events[0].latest < moment:
            events.popleft()
        if not events:
            label = _Label(moment, id, y)
            self.early.append(label)
            self._early_by_id.setdefault(id, deque()).append(label)
            return None
        event = events[0]
        self.repeated += event.y is not None
        if event.y is not None and (event.learned or not self._at_once):
            return None
        event.y = y  # in place of one that came before the event, if it is learned at once
        return event

    def _event(self, event: PendingEvent, earliest: Any) -> bool:
        """Let an event wait, with its label if one came from `earliest` on; True if that came with it."""
        while self.early and self.early[0].moment < earliest:
            label = self.early.popleft()
            same = self._early_by_id.get(label.id)
            if same and same[0] is label:
                same.popleft()
                if not same:
                    del self._early_by_id[label.id]
        found = self._early_by_id.pop(event.id, None)
        together = False
        if found:
            label = found[0]
            if self._at_once:
                label = next((each for each in found if each.moment >= event.moment), label)
            event.y, together = label.y, label.moment >= event.moment
            self.repeated += len(found) - 1
        self.waiting.append(event)
        self._by_id.setdefault(event.id, deque()).append(event)
        return together

    def _due(self) -> PendingEvent:
        """The first event that is due; it waits no longer."""
        event = self.waiting.popleft()
        events = self._by_id.get(event.id)
        if events and events[0] is event:
            events.popleft()
        if not events:
            self._by_id.pop(event.id, None)
        return event


def _learned(event: PendingEvent) -> Iterator[tuple[str, PendingEvent]]:
    """The step of an event that is learned before it is due."""
    event.learned = True
    yield "label", event
    event.x = None


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
