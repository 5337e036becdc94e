"""Builds learners and lanes from a configuration; imports the classes that it names."""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import os
import sys
import time
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import numpy as np
from river import base, compose

from streampair import auc, models, ranking
from streampair.base.pair_moments import begin_with_table
from streampair.engine import (
    Event,
    EventRows,
    ExternalState,
    Lane,
    LaneId,
    LoggedLane,
    Monitoring,
    Record,
    RegretConfig,
    Saving,
)
from streampair.engine.exploration import Exploration
from streampair.engine.fits import PendingModel
from streampair.engine.pipeline import check_explains
from streampair.engine.snapshot import MAGIC, unpack
from streampair.errors import ConfigError, PrivacyError, SnapshotError, StreampairError
from streampair.kernels import on_compile
from streampair.privacy import EntityLimit, NoiseKey
from streampair.privacy.pipeline_check import class_name
from streampair.steps import KINDS, TYPES
from streampair_connectors.codecs.fields import is_outer
from streampair_connectors.config import Config, parse_config
from streampair_connectors.kafka import Partition
from streampair_connectors.observability.logs import get_logger

__all__ = [
    "LEARNERS_TO_COMPILE",
    "build_lane",
    "build_learner",
    "build_logged_lane",
    "compile_kernels",
    "draws_key",
    "exploration_of",
    "is_private",
    "minimal_config",
    "named_steps",
    "start_model",
    "taken_cells",
    "warm_up",
]

# Packages whose classes a configuration may name without learner.allow_classes.
_OPEN_PACKAGES = ("streampair", "river")
#: Where the classes of streampair are that a configuration may name.
_ROOMS = ("auc", "ranking", "metric", "preprocessing", "buffers", "losses", "schedules", "privacy")

# In the warm-up a private lane gets batches of this size until it has released, for at most this long: many
# features take their time. Time spent compiling does not count.
_FIRST_BATCH, _FIRST_RELEASE_SECONDS = 500, 10.0

# A forest builds its first boosted tree, and compiles what builds it, once it has learned so many records.
_FIRST_TREE = 50

log = get_logger(__name__)

AnyLane = TypeVar("AnyLane", bound=Lane)


def input_partitions(config: Config, count: int) -> list[Partition]:
    """The partitions of an input with `count` of them."""
    return [Partition(config.input.topic, number) for number in range(count)]


def is_private(config: Config) -> bool:
    """Whether the learner is private: it draws noise."""
    learner = config.learner
    path = learner.class_ if learner.class_ is not None else learner.steps[-1].class_
    return "noise_key" in (_parameters(_import(path, "learner.class", learner.allow_classes)) or ())


def taken_cells(config: Config) -> dict[str, Any]:
    """Whether the model accepts records with missing values, and texts: options of the decoders.

    The learner does, or a step in front of it. Errors of a private learner's records quote no values.
    """
    learner = config.learner
    path = learner.class_ if learner.class_ is not None else learner.steps[-1].class_
    try:
        kind = _import(path, "learner.class", learner.allow_classes)
    except ConfigError:  # raised where the learner is built
        return {}
    front = [KINDS[name] for name in named_steps(config)]
    return {
        "gaps": getattr(kind, "takes_gaps", False) or any(step.gaps for step in front),
        "nulls": getattr(kind, "takes_nulls", False) and not learner.steps[:-1],
        "texts": getattr(kind, "takes_text", False) or any(step.texts for step in front),
        "quotes": not is_private(config),
    }


def named_steps(config: Config) -> set[str]:
    """Keys of `streampair.steps.KINDS` in front of the learner, at any depth."""
    return set(_class_paths([step.model_dump() for step in config.learner.steps[:-1]]))


def _class_paths(value: Any) -> Iterator[str]:
    """Keys of the table of steps that a part of a configuration names, at any depth."""
    if isinstance(value, Mapping):
        yield from {str(value.get(key)) for key in ("class", "class_")} & KINDS.keys()
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    for part in inner:
        yield from _class_paths(part)


def draws_key(config: Config) -> bool:
    """Whether the learner draws noise and no key is configured: the store then generates and keeps one."""
    learner = config.learner
    options = learner.options if learner.class_ is not None else learner.steps[-1].options
    declared = learner.noise_key_file is not None or "seed" in options
    return not declared and is_private(config)


def build_learner(config: Config, *, noise_key: NoiseKey | None = None) -> Any:
    """Import and construct the configured estimator or pipeline.

    streampair's own learners also get the values of [input]: `positive` and `negative`, and, without a
    pipeline, `features` and `bounds`; [learner.options] takes precedence. A private one gets the configured
    noise key, or else `noise_key`. It begins with the model that learner.start names, if there is one.

    Raises
    ------
    SnapshotError
        learner.start is no model, or of another version.
    ConfigError
        The import path does not exist, or names a class that a configuration may not use; an option is
        unknown, or the constructor refuses one; the learner cannot begin with learner.start. The message
        names the key.
    """
    learner = config.learner
    steps = (
        [(learner.class_, learner.options, "learner")]
        if learner.class_ is not None
        else [(s.class_, s.options, f"learner.steps[{i}]") for i, s in enumerate(learner.steps)]
    )
    built = []
    for number, (path, options, where) in enumerate(steps):
        kind = _import(path, f"{where}.class", learner.allow_classes)
        values = {k: _value(v, f"{where}.options.{k}", learner.allow_classes) for k, v in options.items()}
        last = number == len(steps) - 1
        if last and kind.__module__ == "streampair.ranking" and config.input.label_type == "binary":
            raise ConfigError(
                f"{where}.class = {path!r} learns from relevances, but the input has two labels",
                fix='add label_type = "any" to [input]'
                if config.label_input is None
                else "name a learner of two classes, such as streampair.auc.PairOGD; or send relevances in "
                'the events: remove [label_input], name input.label, and add label_type = "any" to [input]',
            )
        if last and kind.__module__.split(".")[0] == "streampair":
            _add_declared_options(kind, values, config, noise_key, alone=len(steps) == 1)
            _check_classes(values.get("classes"), config, f"{where}.options.classes")
        built.append(_construct(kind, values, f"{where}.options"))
    model = built[0] if len(built) == 1 else _pipeline(built)
    if learner.start is not None:
        _begin(config, model)
    return model


def _check_classes(classes: Any, config: Config, key: str) -> None:
    """Refuse classes that no label of the input is: all records would be learned as without a label."""
    declared = classes if isinstance(classes, list) else []
    if config.input.label_type == "binary" and any(value not in (True, False) for value in declared):
        raise ConfigError(
            f"{key} is {declared}, but the labels of the input are read as true and false",
            fix='add label_type = "any" to [input]'
            if config.label_input is None
            else f"write {key} = [true, false]; [label_input] reads labels of two classes",
        )


def _pipeline(steps: Sequence[Any]) -> compose.Pipeline:
    try:
        return compose.Pipeline(*steps)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"learner.steps do not form a pipeline: {error}",
            fix="put transformers first and one learner last",
        ) from None


def start_model(config: Config) -> models.Model | None:
    """The model that learner.start names; None: the file is a state.

    Raises
    ------
    ConfigError
        It cannot be read, or has features that the input does not declare.
    SnapshotError
        It is no model, or of another version.
    """
    file = config.learner.start
    if file is not None and file.suffix.lower() == ".onnx":
        raise SnapshotError(
            f"learner.start: {file} is an ONNX graph, which a learner cannot begin with",
            fix="name the JSON of the model",
        )
    if config.start_content().startswith(MAGIC):
        return None
    try:
        model = models.loads(config.start_content())
    except SnapshotError as error:
        raise SnapshotError(f"learner.start: {file}: {error.problem}", fix=error.fix) from None
    _check_declared(config, model.features, f"the model {file}")
    return model


def _check_declared(config: Config, features: Iterable[Hashable], what: str) -> None:
    """Refuse a start that has learned features which the input does not declare."""
    names = config.input.feature_names()
    lost = [] if names is None else sorted({str(name) for name in features} - set(names))
    if lost:
        raise ConfigError(
            f"learner.start: {what} has features that the input does not declare: "
            f"{', '.join(lost[:5])}{', ...' if len(lost) > 5 else ''}",
            fix="add them to input.features, or begin with a model of these features",
        )


def _begin(config: Config, learner: Any) -> None:
    """Let a new learner begin with the model, or the state, that learner.start names."""
    model = start_model(config)
    try:
        if model is None:
            _resume(config, learner)
        else:
            model.to_online(learner, public=config.learner.public_start)
    except (ConfigError, SnapshotError) as error:
        raise type(error)(f"learner.start: {error.problem}", fix=error.fix) from None


def _resume(config: Config, learner: Any) -> None:
    """Let a new learner go on from the state that `streampair backfill` has written.

    Raises
    ------
    ConfigError
        The learner is private, in a pipeline, or of another class; or the state is of other features.
    SnapshotError
        The state is damaged, or of other parameters.
    """
    file = config.learner.start
    if is_private(config) or config.learner.class_ is None:
        what = "private" if is_private(config) else "a pipeline"
        raise ConfigError(
            f"{file} is a state, and {config.learner.label()} is {what}: it begins with a model",
            fix="name the JSON of a model",
        )
    body = unpack(config.start_content())
    if body.get("learner") != class_name(learner) or not isinstance(body.get("state"), Mapping):
        raise ConfigError(
            f"{file} is no state of a {class_name(learner)}, but of {body.get('learner', 'a lane')!r}",
            fix="make it with this learner: streampair backfill CONFIG TABLE --output start.state",
        )
    if isinstance(learner, auc.PairMoments | ranking.PairMoments) and learner.half_life is not None:
        begin_with_table(learner, body["state"])
    else:
        learner.load_state(body["state"])
    _check_declared(config, learner.feature_names, f"the state {file}")


def build_lane(
    config: Config,
    decode: Callable[[Any], Event],
    identity: LaneId | None = None,
    *,
    snapshots: bool = True,
    noise_key: NoiseKey | None = None,
) -> Lane:
    """Return a new lane of this configuration, without a log.

    Parameters
    ----------
    config, decode
        Of the application, and of its records.
    identity
        None: of the application on its topic.
    snapshots
        Whether it can be saved.
    noise_key
        As of `build_learner`.

    Raises
    ------
    ConfigError, PrivacyError
        The model cannot be used in a lane; the message says why.
    """
    identity = config.lane_id if identity is None else identity
    with _warnings_logged(identity):
        saving = _saving(config) if snapshots else None
        return _build(Lane, config, decode, identity, noise_key, saving=saving)


def build_logged_lane(
    config: Config,
    decode: Callable[[Any], Event],
    identity: LaneId | None = None,
    *,
    noise_key: NoiseKey | None = None,
    payloads_change: bool = False,
    submit: Callable[[Callable[[], Any]], PendingModel] | None = None,
) -> LoggedLane:
    """Return a new lane of this configuration, to be started from its log.

    Parameters
    ----------
    config, decode, identity, noise_key
        As of `build_lane`.
    payloads_change, submit
        As of `LoggedLane`.

    Raises
    ------
    ConfigError, PrivacyError
        The model cannot be used in a lane; the message says why.
    """
    identity = config.lane_id if identity is None else identity
    with _warnings_logged(identity):
        lane = _build(
            LoggedLane,
            config,
            decode,
            identity,
            noise_key,
            saving=_saving(config),
            payloads_change=payloads_change or config.input.payloads_change,
            submit=submit,
        )
    if lane.source is not None:
        lane.source.learns_only = config.label_input is not None and config.learner.parallel
    return lane


def exploration_of(config: Config) -> Exploration | None:
    """Which events an application explores; None: none.

    Raises
    ------
    ConfigError
        The secret cannot be read.
    """
    output, key = config.output, config.output.explore_key()
    if output.explore is None or output.alert_above is None or key is None:
        return None
    return Exploration(output.alert_above, output.explore, key, config.input.topic)


def _saving(config: Config) -> Saving:
    pickles = config.learner.allow_pickle
    return Saving(
        allow_pickle=pickles,
        # Without pickle a state needs no signature, so that it can move to a store with another key.
        signing_keys=config.store.signing_keys() if pickles else [],
        fingerprint=config.fingerprint(),
        settings=config.model_settings(),
    )


def _build(
    kind: type[AnyLane],
    config: Config,
    decode: Callable[[Any], Event],
    identity: LaneId,
    noise_key: NoiseKey | None,
    regret: RegretConfig = RegretConfig(),  # noqa: B008  (frozen)
    **options: Any,
) -> AnyLane:
    worker, stops = config.worker, config.label_input is not None and config.label_input.stopped is not None
    # Only where scores act: in a replay of files none has, and in a warm-up none does.
    explore = exploration_of(config) if kind is LoggedLane and stops else None
    lane = kind(
        build_learner(config, noise_key=noise_key),
        decode,
        identity,
        name=config.learner.label(),
        positive=config.input.positive,
        on_bad=worker.on_bad,
        breaker=None if worker.on_bad == "skip" else "auto",
        monitoring=Monitoring(
            regret=regret,
            auc_window=worker.auc_window,
            # Where events are stopped, no label of a stopped one comes: the recall is 0, and says nothing.
            threshold=None if stops and explore is None else config.output.alert_above,
            bounds=config.input.without_categories().bounds(),
            exploration=explore,
            drift_reference=worker.drift_reference,
        ),
        classes=config.input.label_type == "any",
        explain=0 if config.learner.parallel else config.output.explain,
        trust_preprocessing=config.learner.trust_preprocessing,
        labels=config.label_codes,
        notes=config.privacy_notes,
        **options,
    )
    if config.learner.parallel and config.output.explain:
        check_explains(lane.learner)  # scorers explain
    if lane.private and config.label_input is not None and config.label_input.order == "arrival":
        raise PrivacyError(
            f'label_input.order = "arrival" learns in the order of the labels, and {lane.name} is private: '
            "whether a label comes would change what others learn",
            fix='remove it: the default is "wait"',
        )
    if config.output.explore is not None and getattr(lane.learner, "auc_share", None):
        raise PrivacyError(
            f"output.explore weighs outcomes, and {lane.name} releases an AUC, in which each record counts "
            "once: a weight would multiply what one record changes, and without it the AUC would be that of "
            "the events that were let pass",
            fix="remove auc_share from learner.options, or output.explore",
        )
    outer = next(filter(is_outer, config.input.field_names() or ()), None)
    if lane.private and outer is not None:
        raise PrivacyError(
            f"the feature {outer!r} is outside of the value of a message, and {lane.name} is private: what a "
            "record releases is bound to its value",
            fix="send it as a field of the value",
        )
    if lane.private and config.label_input is not None and config.label_input.id_field is not None:
        raise PrivacyError(
            f"label_input.id names the field {config.label_input.id_field!r} of an event, and {lane.name} is "
            "private: an event with another value could take the label of another event",
            fix='send the id as the key of both topics, label_input.id = "key"; or in a header of both, '
            'label_input.id = { header = "..." }',
        )
    return lane


@contextmanager
def _warnings_logged(identity: LaneId) -> Iterator[None]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for warning in caught:
        log.warning("lane_warning", topic=identity.topic, message=str(warning.message))


def warm_up(config: Config) -> None:
    """Compile the kernels of a lane, by running a throw-away lane before the worker joins its group.

    Compilation takes seconds to minutes and would block the consumer's heartbeats. The lane learns in batches
    and one by one, releases, commits, computes its gauges, and is restored from its snapshot. Its records are
    synthetic, and nothing that it releases leaves this function.
    """
    begun: list[float] = []

    def compiling() -> None:
        begun.append(time.monotonic())
        if not _print_progress("compiling kernels (first start only) ..."):
            log.info("compiling")

    # Warnings and errors here are repeated by the real lanes, with an offset.
    with on_compile(compiling), warnings.catch_warnings(), suppress(StreampairError):
        warnings.simplefilter("ignore")
        _exercise_lane(config)
    if begun:
        took = round(time.monotonic() - begun[0], 1)
        if not _print_progress(f"kernels compiled in {took} s"):
            log.info("compiled", seconds=took)


def _exercise_lane(config: Config) -> None:
    """Run a lane: batches until a private learner has released, some of them decoded record by record;
    commits, a snapshot, and a lane restored from it.
    """
    regret = RegretConfig(exact=2)  # so that batches are soon learned at once
    late = config.label_input is not None
    learner = config.learner.model_copy(update={"start": None})
    config = config.model_copy(update={"label_input": None, "learner": learner})
    names = config.input.feature_names() or list("abcdefgh")
    high = config.input.positive
    low = _other_label(high) if config.input.negative is None else config.input.negative
    labels = [high, low, high]

    def decode(record: Record) -> Event:
        return Event(dict.fromkeys(names, 0.5), labels[record.offset % 3])

    def many(records: Sequence[Record]) -> EventRows | None:
        if records[-1].value == b"alone":
            return None
        values = np.full((len(records), len(names)), 0.5)
        return EventRows(names, values, [labels[record.offset % 3] for record in records])

    decode.many = many  # type: ignore[attr-defined]
    key, identity = NoiseKey(os.urandom(32)), LaneId(config.app, config.input.topic, 0)
    saving = _saving(config)
    lane = _build(LoggedLane, config, decode, identity, key, regret, saving=saving)
    if type(lane.learner).__module__.split(".")[0] not in ("streampair", "river"):
        return  # a third-party learner must not get synthetic records
    lane.read(b"")
    lane.start(ExternalState(registers=False))

    def feed(count: int, value: bytes = b"") -> float:
        """Seconds of work; 0 if something was compiled."""
        done, room, compiled = lane.next_offset or 0, lane.room, list[bool]()
        begin = time.monotonic()
        with on_compile(functools.partial(compiled.append, True)):
            lane.process(
                [Record(done + i, value) for i in range(count if room is None else min(count, room))]
            )
            lane.commit()
            lane.committed()
        return 0.0 if compiled else time.monotonic() - begin

    for value in (b"", b"", b"", b"alone"):
        feed(3, value)
    spent = 0.0
    while _awaits_release(lane) and spent < _FIRST_RELEASE_SECONDS:
        spent += feed(_FIRST_BATCH)
    feed(3, b"alone")
    if lane.privacy is None:
        feed(_FIRST_TREE)
    lane.gauges(solve=True)
    saved = lane.snapshot()
    if late and hasattr(lane.learner, "score_rows"):
        lane.learner.score_rows(names, np.full((2, len(names)), 0.5))
    _learn_one_by_one(lane.learner, names, labels)
    lane = _build(LoggedLane, config, decode, identity, key, regret, saving=saving)
    lane.read(b"")
    lane.restore(saved)
    lane.gauges(solve=True)


def _learn_one_by_one(learner: Any, names: Sequence[str], labels: Sequence[Any]) -> None:
    """Learn records one by one, as the regret needs: complete ones, and some with missing features."""
    if hasattr(learner, "score_one"):
        for count in (len(names), len(names) - 1, 1):
            for y in labels:
                with suppress(StreampairError):
                    x = dict.fromkeys(names[:count], 0.5)
                    learner.score_one(x)
                    learner.learn_one(x, y)


def _other_label(label: Any) -> Any:
    """Another label of the same type."""
    if isinstance(label, str):
        return f"not {label}"
    return not label if isinstance(label, bool) else 1 - label


def _awaits_release(lane: LoggedLane) -> bool:
    """Whether a private lane has made fewer than two releases."""
    report = lane.privacy
    return report is not None and report.releases < 2


def _print_progress(line: str) -> bool:
    """Print a line of progress on a terminal; whether stderr is one."""
    if sys.stderr.isatty():
        print(line, file=sys.stderr, flush=True)
    return sys.stderr.isatty()


def _import(path: str, where: str, allowed: Sequence[str]) -> Any:
    """Import the class at a path, if a configuration may name it. Other modules are not even imported.

    Classes of River and streampair that derive from River's `Base` are permitted: estimators, transformers,
    losses, optimisers, buffers, mechanisms. Others must be in `allowed`.
    """
    module_path, _, name = path.rpartition(".")
    if not module_path:
        full = _public_path(name) or "streampair.auc.PairOGD"
        raise ConfigError(
            f"{where} = {path!r} is not an import path",
            fix=f'write it in full, as class = "{full}"',
        )
    if path not in allowed and module_path.split(".")[0] not in _OPEN_PACKAGES:
        raise ConfigError(
            f"{where} = {path!r} is not a class of streampair or River, and nothing was imported or called",
            fix=f"correct the path; or, if you trust this class, add {path!r} to learner.allow_classes",
        )
    try:
        module = importlib.import_module(module_path)
    except ImportError as error:
        raise ConfigError(
            f"{where} = {path!r} cannot be imported: {error}",
            fix="correct the path, or install the package",
        ) from None
    found = getattr(module, name, None)
    if not inspect.isclass(found):
        known = [n for n in dir(module) if not n.startswith("_") and inspect.isclass(getattr(module, n))]
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        meant = _public_path(name) or (f"{module_path}.{near[0]}" if near else None)
        raise ConfigError(
            f"{where}: {module_path} has no class {name!r}",
            fix="correct the import path" if meant is None else f'write class = "{meant}"',
        )
    if path not in allowed and not _is_part(found):
        raise ConfigError(
            f"{where} = {path!r} is neither an estimator nor a component of one, and it was not called",
            fix=f"correct the path; or, if you trust this class, add {path!r} to learner.allow_classes",
        )
    return found


def _public_path(name: str) -> str | None:
    """The import path of a class of streampair with this name; None: there is none."""
    for room in _ROOMS:
        module = importlib.import_module(f"streampair.{room}")
        if name in module.__all__ and inspect.isclass(getattr(module, name)):
            return f"streampair.{room}.{name}"
    return None


def _is_part(kind: type) -> bool:
    """Whether it is an estimator of River or streampair, or a component of one."""
    ours = kind.__module__.split(".")[0] in _OPEN_PACKAGES
    return ours and (issubclass(kind, base.Base) or kind is EntityLimit)


def _value(value: Any, where: str, allowed: Sequence[str]) -> Any:
    """Build the object of a table with a `class` key; other values are returned unchanged."""
    if isinstance(value, Mapping):
        if "class" in value:
            kind = _import(str(value["class"]), f"{where}.class", allowed)
            arguments = {k: _value(v, f"{where}.{k}", allowed) for k, v in value.items() if k != "class"}
            return _construct(kind, arguments, where)
        return {k: _value(v, f"{where}.{k}", allowed) for k, v in value.items()}
    if isinstance(value, list):
        return [_value(v, f"{where}[{i}]", allowed) for i, v in enumerate(value)]
    return value


def _positional(kind: Any, values: dict[str, Any], where: str) -> list[Any]:
    """Take the arguments out of `values` that have no name of their own, as the `keys` of a `Select`."""
    try:
        parameters = inspect.signature(kind).parameters.values()
    except (TypeError, ValueError):
        return []
    name = next((each.name for each in parameters if each.kind is each.VAR_POSITIONAL), None)
    parts = [] if name is None else values.pop(name, [])
    if not isinstance(parts, list):
        raise ConfigError(f"{where}: {name} of {kind.__name__} is no list", fix=f"give {name} as a list")
    if kind is not compose.SelectType:
        return parts
    for part in parts:
        if part not in TYPES:
            raise ConfigError(
                f"{where}: SelectType selects no type {part!r}", fix=f"name types of {', '.join(TYPES)}"
            )
    return [TYPES[part] for part in parts]


@functools.lru_cache(maxsize=64)  # called several times per class at a start
def _parameters(kind: Any) -> tuple[str, ...] | None:
    """Parameter names of a constructor; None: it accepts any name, or has no signature."""
    try:
        parameters = inspect.signature(kind).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return tuple(p.name for p in parameters)


def _construct(kind: Any, values: dict[str, Any], where: str) -> Any:
    known = _parameters(kind)
    if known is not None:
        for name in values:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
                raise ConfigError(
                    f"{where}: {kind.__name__} has no option {name!r}",
                    fix=f"write {near[0]}" if near else f"known options: {', '.join(known) or 'none'}",
                )
    try:
        return kind(*_positional(kind, values, where), **values)
    except StreampairError as error:
        raise type(error)(f"{where}: {error.problem}", fix=error.fix) from None
    except Exception as error:
        raise ConfigError(
            f"{where}: {kind.__name__} refuses its options: {error}", fix=f"correct {where}"
        ) from None


def _add_declared_options(
    kind: Any, values: dict[str, Any], config: Config, noise_key: NoiseKey | None, *, alone: bool
) -> None:
    known = _parameters(kind) or ()
    declared: dict[str, Any] = {"positive": config.input.positive, "negative": config.input.negative}
    if alone:
        declared["features"] = config.input.feature_names()
        declared["bounds"] = config.input.bounds()
    if "noise_key" in known and values.get("seed") is None:
        key = config.learner.noise_key()
        declared["noise_key"] = noise_key if key is None else NoiseKey(key)
    for name, value in declared.items():
        if name in known and name not in values and value is not None:
            values[name] = value


_BUDGET = {"epsilon": 1.0, "delta": 1e-6}
_ENDING = {**_BUDGET, "horizon": 2000}
_GRADIENTS = {"mechanism": {"class": "streampair.privacy.PairGradients"}}
_NUMBERS = {"label_type": "any"}

#: For each learner that a lane accepts: class, options, and keys of its [input] in addition to the features.
LEARNERS_TO_COMPILE: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("streampair.auc.PairOGD", {}, {}),
    ("streampair.auc.PairOGD", {"buffer": {"class": "streampair.buffers.FullHistory"}}, {}),
    ("streampair.auc.OAM", {}, {}),
    ("streampair.auc.SPAUC", {}, {}),
    ("streampair.auc.PairMoments", {}, {}),
    ("streampair.auc.Forest", {}, {}),
    ("streampair.auc.MulticlassForest", {}, {}),
    ("streampair.auc.PairFTRL", _BUDGET, {}),
    ("streampair.auc.PairFTRL", _ENDING, {}),
    ("streampair.auc.PairFTRL", {**_BUDGET, **_GRADIENTS}, {}),
    ("streampair.auc.PairFTRL", {**_ENDING, **_GRADIENTS}, {}),
    ("streampair.auc.PrivateForest", _ENDING, {}),
    ("streampair.auc.OnPairC", _ENDING, {}),
    ("streampair.auc.OnPairStrC", {**_ENDING, "l2": 0.1}, {}),
    ("streampair.ranking.PairOGD", {}, _NUMBERS),
    ("streampair.ranking.PairMoments", {}, _NUMBERS),
    ("streampair.ranking.Forest", {}, _NUMBERS),
    ("streampair.ranking.PairFTRL", _ENDING, _NUMBERS),
    ("streampair.ranking.OnPairC", _ENDING, _NUMBERS),
    ("streampair.ranking.OnPairStrC", {**_ENDING, "l2": 0.1}, _NUMBERS),
    ("streampair.metric.PairOGD", {}, {}),
    ("streampair.metric.PairFTRL", _ENDING, {}),
    ("streampair.metric.OnPairC", _ENDING, {}),
    ("streampair.metric.OnPairStrC", {**_ENDING, "l2": 0.1}, {}),
]
_FEATURES = {name: [0, 1] for name in "abcdefgh"}


def minimal_config(path: str, options: dict[str, Any], more: dict[str, Any]) -> Config:
    """The configuration of a lane with this learner."""
    return parse_config(
        {
            "app": "compile",
            "input": {"topic": "events", "label": "y", "features": _FEATURES, **more},
            "learner": {"class": path, "options": options},
        }
    )


def compile_kernels() -> None:
    """Compile the kernels of each learner in `LEARNERS_TO_COMPILE`, for an image.

    Numba caches them next to the source, or in `NUMBA_CACHE_DIR`. Later processes load them from there, even
    if they cannot write to it.
    """
    for path, options, more in LEARNERS_TO_COMPILE:
        print(f"{path} {options or ''}", file=sys.stderr, flush=True)
        warm_up(minimal_config(path, options, more))
