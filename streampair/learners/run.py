"""The slots of a private learner: records in, noise, releases (docs/privacy.md 3, 4.4, 7, 8)."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampair import kernels
from streampair.learners.identity import Counts, Identity, told_apart
from streampair.learners.watch import BoundsWatch
from streampair.privacy.entities import Admission
from streampair.privacy.mechanisms import fitted
from streampair.privacy.mechanisms.base import Release, Settings
from streampair.privacy.mechanisms.link import Link
from streampair.privacy.mechanisms.run import Asked, Run
from streampair.privacy.mechanisms.warmup import Warmup, plan_warmup
from streampair.privacy.noise import ChainedNoise, NoiseKey, NormalStream, Stream, process_splits
from streampair.privacy.origin import Origin, Origins
from streampair.records import features as _features
from streampair.records.design import Design, check_finite

__all__ = ["SlotRun"]

Array = NDArray[np.float64]

_NOWHERE = Origin()
_NOBODY = Origins()


class SlotRun:
    """Takes every record as a slot, and releases models under calibrated noise.

    Parameters
    ----------
    settings
        What is promised, with the number of features.
    names
        Feature names.
    identity
        Who the learner is.
    counts
        What it has counted.
    admission
        Which records of an entity are learned from; None: entities are not known.
    plan
        What `written` of an earlier run gave: this one runs under exactly these numbers. None: under those
        that are fitted here.

    Raises
    ------
    ValueError
        If the plan is not of these settings.

    Attributes
    ----------
    design
        From a record to its vector.
    warmup
        The prefix; None without one.
    rule
        The mechanism's run.
    mu_warmup
        mu of one release of the warm-up.
    slots
        Slots taken.
    stream
        The noise; None before the first record.
    """

    #: Null slots that wait for the features' names: none, once they are known.
    pending = 0

    def __init__(
        self,
        settings: Settings,
        names: Sequence[Hashable],
        identity: Identity,
        counts: Counts,
        admission: Admission | None,
        plan: Mapping[str, Any] | None = None,
    ) -> None:
        self.settings = settings
        self.identity = identity
        self.counts = counts
        self.admission = admission
        self.design: Design = settings.mechanism.design(names, settings.bounds)
        saved = None if plan is None else plan["rule"]
        self.rule: Run = settings.mechanism.start(settings, seed=identity.buffer_seed(), saved=saved)
        self.design.cap = self.rule.cap
        self.rule.how = self.design.how
        again = self.rule.plan.fork_mu2(settings.window) if settings.forks else None
        self.mu_warmup = settings.mu_warmup(again)
        if plan is not None:
            self.mu_warmup = fitted.near("mu_warmup", plan["mu_warmup"], self.mu_warmup)
        self.warmup: Warmup | None = None
        if settings.warmup:
            prefix = plan_warmup(
                self.mu_warmup / settings.warmup_records,
                dim=len(names),
                slots=settings.warmup,
                labels=settings.mechanism.label_mean,
                relation=settings.relation,
                cross=settings.mechanism.label_cross,
            )
            prefix = fitted.under(prefix, None if plan is None else plan["prefix"])
            self.warmup = Warmup(prefix, len(names), settings.warmup_records)
        if plan is not None and self.written() != plan:
            raise ValueError("the plan has other numbers")
        self._watch: BoundsWatch | None = BoundsWatch(self.design)
        self.slots = 0
        self._splits = process_splits()
        self.stream: NormalStream | ChainedNoise | Stream | None = None

    # ---- what is known of it ---------------------------------------------------------------------------

    @property
    def names(self) -> tuple[Hashable, ...]:
        """The features, in the order of the columns."""
        return self.design.names

    @property
    def weights(self) -> Array:
        """Published weights, in the mechanism's coordinates: a view."""
        return self.rule.average

    @property
    def link(self) -> Link:
        """From a score to a probability, by releases alone."""
        return self.rule.link

    @property
    def warmed(self) -> bool:
        """Whether the warm-up's moments have been released."""
        return self.design.standardised

    @property
    def forked(self) -> bool:
        """Whether the process has forked since the first record: then two go on from one budget."""
        return self.slots > 0 and self._splits != process_splits()

    @property
    def released(self) -> Array:
        """What has left through the mechanism's door, as it came: for the audit."""
        return self.rule.released

    def card(self) -> tuple[Release, ...]:
        """What is released, each kind with what it is worth."""
        warmup = () if self.warmup is None else (self.warmup.sums.release,)
        return (*warmup, *self.rule.card())

    def written(self) -> dict[str, Any]:
        """Every fitted number, as plain values."""
        warmup = self.warmup
        return {
            "mu": self.settings.mu,
            "warmup": self.settings.warmup,
            "mu_warmup": self.mu_warmup,
            "prefix": None if warmup is None else fitted.written(warmup.plan),
            "rule": fitted.written(self.rule.plan),
        }

    # ---- one record ------------------------------------------------------------------------------------

    def take(self, x: Any, label: float, origin: Origin | None = None) -> None:
        """Take one slot: the record is packed, and never refused; what is missing makes it a null slot.

        Parameters
        ----------
        x
            A record.
        label
            The number of its label; NaN: none.
        origin
            Where it comes from; None: nobody has said, and the record itself may name its entity.
        """
        design, rule, stream, counts = self.design, self.rule, self.stream, self.counts
        counts.ignored_features += design.read_learned(x, label)
        if stream is None or self.admission is not None or self._watch is not None or not rule.quiet:
            self._slot(self._origin(x) if origin is None else origin)
            return
        # Most records of most learners: they are added up, and hashed.
        if isinstance(stream, ChainedNoise):
            stream.wait(design.told(None if origin is None else origin.context))
        rule.learn_quietly(design)
        self.slots += 1
        given = design.label.item()
        if given != given:
            counts.null_slots += 1

    def score_and_take(
        self, x: Any, label: float, origin: Origin | None = None, *, raises: bool = True
    ) -> float:
        """`score`, then `take`: bit for bit, with the record packed and prepared once where it is whole.

        What `score` raises comes before the slot is taken; where it is not to raise, NaN is returned.
        """
        design = self.design
        if not design.whole(x):
            try:
                score = self.score(x)
            except Exception:
                if raises:
                    raise
                score = math.nan
            self.take(x, label, origin)
            return score
        score = float(kernels.dot(self.rule.average, design.ready[0]))
        self.counts.ignored_features += len(x) - len(design.names)
        design.label[0] = label
        self._slot(self._origin(x) if origin is None else origin, prepared=True)
        return score

    def null(self, origin: Origin | None = None) -> None:
        """Take one slot without a record."""
        self.design.raw.fill(math.nan)
        self.design.label[0] = math.nan
        self._slot(_NOWHERE if origin is None else origin)

    def _origin(self, x: Any) -> Origin:
        """Of a record of which nobody has said where it comes from."""
        return _NOWHERE if self.admission is None else Origin(entity=self._named(x))

    def _named(self, x: Any) -> Any:
        """The entity that a record names; None if it names none."""
        entity = self.settings.entity
        field = None if entity is None else entity.field
        if field is None or not isinstance(x, Mapping):
            return None
        try:
            named, who = field in x, x.get(field)
        except Exception:  # a mapping that cannot be read
            return None
        if named:
            self.counts.ignored_features -= 1  # it was counted as a feature that nobody knows
        return who

    def _admit(self, admission: Admission, who: Hashable) -> bool:
        """Blank the record in the scratch if its entity has had enough, by entity and slot alone."""
        try:
            admitted = who is not None and admission.admit(who, self.slots + 1)
        except TypeError:  # it names nobody that could be told apart
            admitted = False
        if not admitted:
            self.counts.refused_records += 1
            self.design.raw.fill(math.nan)
            self.design.label[0] = math.nan
        return admitted

    def _slot(self, origin: Origin, *, prepared: bool = False) -> None:
        """A slot for the record in the scratch of the design, which is `prepared` or raw: the hot path."""
        design, rule, asked = self.design, self.rule, self.settings
        if asked.horizon is not None and self.slots >= asked.horizon:
            return
        stream = self._open() if self.stream is None else self.stream
        chain = stream if isinstance(stream, ChainedNoise) else None
        label, ready, usable = design.label, design.ready, design.usable
        record = b"" if chain is None else design.told(origin.context)
        if self.admission is not None and not self._admit(self.admission, origin.entity):
            prepared = False
        learning = self.slots >= asked.warmup
        if not learning:
            ready = design.clipped
            design.clip(design.raw, ready, usable)
        elif not prepared:
            design.prepare(design.raw, ready, usable)
        if usable.item() != 1.0:
            label[0] = math.nan
        given = label.item()
        if given != given:
            self.counts.null_slots += 1
        if self._watch is not None and usable.item() == 1.0:
            self._look(self._watch, design.raw)
        if learning:
            if chain is None:
                rule.learn(ready, label, stream)
            else:
                chain.record(record)
                rule.learn_chained(ready, label, chain)
            self.slots += 1
        else:
            self._prefix(ready, usable, label, stream, (record,))

    def _look(self, watch: BoundsWatch, rows: Array) -> None:
        """Show whole rows to the watch, until it has seen enough."""
        if not watch.look(rows):
            self._watch = None

    def _prefix(
        self, ready: Array, usable: Array, labels: Array, stream: Any, records: Sequence[bytes]
    ) -> None:
        """Slots of the warm-up, one a row; what identifies their records, for a chain."""
        warmup = self.warmup
        assert warmup is not None
        warmup.add(ready, usable, labels)
        self.slots += len(ready)
        ends = self.slots == self.settings.warmup
        if isinstance(stream, ChainedNoise):
            stream.skip(records[: len(records) - ends])
            if ends:
                stream.record(records[-1])
                stream.advance(warmup.sums.cells())
        if ends:
            self._standardise(*warmup.release(stream))
            if warmup.cross is not None:
                self.rule.begin_with(warmup.cross)

    def _standardise(self, mean: Array, factor: Array, label: float) -> None:
        """Use what the warm-up has released."""
        self.rule.centre(label)
        self.design.standardise(mean, self.rule.spread * factor)

    # ---- many records ----------------------------------------------------------------------------------

    def take_many(
        self,
        raw: Array,
        given: Array,
        origins: Origins = _NOBODY,
        scores: Array | None = None,
        null: NDArray[np.bool_] | None = None,
    ) -> NDArray[np.bool_] | None:
        """Take a slot for each row, up to the horizon: the prefix first, then learning.

        Parameters
        ----------
        raw
            Values (n, d) in the order of the features; NaN where there is none.
        given
            Numbers of the labels (n,); NaN: none.
        origins
            Where the rows come from.
        scores
            Gets the linear score (n,) of each row before its slot, as of a record that is whole; None: nobody
            asks.
        null
            Which rows (n,) are scored, and then taken as by `null`; None: none.

        Returns
        -------
        array or None
            Which rows were admitted, of those before the horizon; None where entities are not known.
        """
        design, rule, horizon, warmup = self.design, self.rule, self.settings.horizon, self.settings.warmup
        n, at = len(raw), 0
        end = n if horizon is None else min(n, max(horizon - self.slots, 0))
        admitted = None if self.admission is None else np.empty(end, dtype=np.bool_)
        while at < end:
            stream = self._open() if self.stream is None else self.stream
            prefix = self.warmup if self.slots < warmup else None
            stop = min(end, at + min(design.chunk, end if prefix is None else warmup - self.slots))
            part, labels, shown = raw[at:stop], given[at:stop], None if scores is None else scores[at:stop]
            ready, usable = np.empty((stop - at, design.width)), np.empty(stop - at)
            if prefix is None or shown is not None:
                design.prepare(part, ready, usable)
            if prefix is not None and shown is not None:
                kernels.score_many(rule.average, ready, shown)
            asked = None if shown is None else Asked(ready, shown)
            blank = None if null is None else null[at:stop]
            if blank is not None and blank.any():
                part, labels = part.copy(), labels.copy()
                part[blank] = labels[blank] = math.nan
            if prefix is not None:
                ready = np.empty(part.shape)
                design.clip(part, ready, usable)
            where = origins.part(slice(at, stop))
            records = told_apart(part, labels, where.contexts) if isinstance(stream, ChainedNoise) else ()
            if admitted is not None:
                ready = ready.copy()
                self._blank(ready, usable, admitted[at:stop], where.entities)
            if self._watch is not None:
                self._look(self._watch, part[usable == 1.0])
            labels = np.where(usable == 1.0, labels, math.nan)
            self.counts.null_slots += int(np.count_nonzero(np.isnan(labels)))
            if prefix is None:
                rule.take(ready, labels, stream, records, asked)
                self.slots += stop - at
            else:
                self._prefix(ready, usable, labels, stream, records)
            at = stop
        if scores is not None and end < n:
            design.scores(rule.average, raw[end:], scores[end:])
        return admitted

    def _blank(
        self, ready: Array, usable: Array, admitted: NDArray[np.bool_], entities: Sequence[Hashable] | None
    ) -> None:
        """Blank the rows of entities that have had enough, by entity and slot alone."""
        assert self.admission is not None
        whose = [None] * len(ready) if entities is None else entities
        admitted[:] = self.admission.admit_many(whose, self.slots + 1)
        refused = ~admitted
        self.counts.refused_records += int(np.count_nonzero(refused))
        ready[refused] = 0.0
        usable[refused] = 0.0

    def take_frame(self, columns: list[Hashable], rows: Array, labels: Array) -> None:
        """`take_many` of rows whose columns have names."""
        known = sum(name in self.design.index for name in columns)
        self.counts.ignored_features += (len(columns) - known) * len(rows)
        self.take_many(self.design.arranged(columns, rows), labels)

    # ---- noise -----------------------------------------------------------------------------------------

    def _open(self) -> NormalStream | ChainedNoise:
        if not self.slots:  # a fork before the first record makes two new learners
            self._splits = process_splits()
        numbers = self.rule.numbers()
        if self.warmup is not None:
            numbers += self.warmup.plan.sigmas
        opened = self.identity.open(self.names, numbers)
        self.stream = opened
        return opened

    @property
    def digest(self) -> bytes:
        """Keyed digest of all that the next noise depends on; empty without a key or a slot."""
        if self.stream is None and self.identity.chained is not None:
            self._open()
        return self.stream.digest if isinstance(self.stream, ChainedNoise) else b""

    # ---- an audit's door -------------------------------------------------------------------------------

    def skip_warmup(self) -> None:
        """Go on as if the warm-up were over, and had found the features as they should be."""
        self.slots = self.settings.warmup

    def as_released(self, mean: Array, factor: Array, label: float) -> None:
        """Go on as if the warm-up had released these: what is learned then must not know its records."""
        self._standardise(mean, factor, label)

    def draw_from(self, key: NoiseKey | None) -> None:
        """Take noise from a key, or from the operating system; the coins of the buffer stay as they are."""
        self.identity.key, self.identity.seed = key, None

    def use(self, stream: Stream) -> None:
        """Take normals from here: an audit lets a learner draw numbers of its own choice."""
        self.stream = stream

    # ---- scores ----------------------------------------------------------------------------------------

    def vector(self, x: Any) -> Array:
        """Vector (d,) of a record that is scored: in scratch."""
        return self.design.of(x)

    def score(self, x: Any) -> float:
        """`weights . vector(x)`."""
        return float(kernels.dot(self.rule.average, self.design.of(x)))

    def vectors(self, xs: Sequence[Mapping[Any, Any]]) -> Array | None:
        """Vectors (n, d) of records that have all features and no others, in one go; None if not all have."""
        rows = _features.packed(self.names, xs)
        return None if rows is None else self.design.prepared(rows)

    def prepared(self, columns: list[Hashable], rows: Array) -> Array:
        """Vectors (n, d) of raw rows that are scored.

        Raises
        ------
        RecordError
            If a known feature is not finite.
        """
        design = self.design
        check_finite(columns, rows, [j for j, name in enumerate(columns) if name in design.index])
        return design.prepared(design.arranged(columns, rows))

    def scores(self, columns: list[Hashable], rows: Array) -> Array:
        """Scores (n,) of raw rows: errors as of `prepared`."""
        design = self.design
        check_finite(columns, rows, [j for j, name in enumerate(columns) if name in design.index])
        out = np.zeros(len(rows))
        design.scores(self.rule.average, design.arranged(columns, rows), out)
        return out

    # ---- state -----------------------------------------------------------------------------------------

    def to_state(self) -> dict[str, Any]:
        """Plain values and arrays; raw records and the memory of the noise are among them."""
        return {
            "names": list(self.names),
            "slots": self.slots,
            "pending": 0,
            "plan": self.written(),
            "standardised": self.warmed,
            "sums": None if self.warmup is None else self.warmup.sums.to_state(),
            "mean": self.design.mean.copy(),
            "factor": self.design.factor.copy(),
            "rule": self.rule.to_state(),
            "chain": self.stream.to_state()
            if isinstance(self.stream, ChainedNoise)
            else self.identity.chained,
        }

    def load_state(self, saved: Mapping[str, Any]) -> None:
        """Continue from `to_state` of a run with the same settings; noise from here on is new."""
        mean = np.array(saved["mean"], dtype=np.float64)
        factor = np.array(saved["factor"], dtype=np.float64)
        design = self.design
        if list(design.names) != list(saved["names"]) or not mean.shape == factor.shape == design.mean.shape:
            raise ValueError("features or moments of another shape")
        if self.warmup is not None:
            self.warmup.sums.load_state(saved["sums"])
        self.rule.load_state(saved["rule"])
        if saved["standardised"]:
            design.standardise(mean, factor)
        self.slots = int(saved["slots"])
        self._watch = None  # it watches a run from its beginning
