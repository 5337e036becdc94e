"""Streams of short messages, each True or False: generated ones, and real ones from a source package.

The real ones are snippets of film reviews and posts of a social network, with the mean of twenty readers'
opinions: True where it is above 0. They are in the source distribution of vaderSentiment:

    pip download --no-deps --no-binary :all: --dest .cache vaderSentiment==3.3.2
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

Messages = list[tuple[str, bool]]
FOLDER = "vaderSentiment-3.3.2"
SOURCE = Path(__file__).resolve().parent.parent / ".cache" / f"{FOLDER}.tar.gz"
N = 12_000


def _vocabulary(r: np.random.Generator, size: int, spread: float) -> tuple[np.ndarray, np.ndarray]:
    """How often each word is used, by Zipf's law, and what it says."""
    often = 1.0 / np.arange(10, size + 10)
    return often / often.sum(), r.normal(0.0, spread, size)


def _written(words: np.ndarray) -> str:
    return " ".join(f"word{i}" for i in words)


def two_classes(size: int, seed: int = 1) -> Messages:
    """Each class draws some twelve words of a vocabulary, with frequencies of its own."""
    r = np.random.default_rng(seed)
    often, says = _vocabulary(r, size, 0.35)
    frequencies = [often * np.exp(sign * says) for sign in (-1.0, 1.0)]
    frequencies = [each / each.sum() for each in frequencies]
    messages = []
    for _ in range(N):
        label = bool(r.random() < 0.3)
        words = r.choice(size, size=3 + r.poisson(9), p=frequencies[label])
        messages.append((_written(words), label))
    return messages


def topics(size: int, seed: int = 2) -> Messages:
    """A message draws words of two of thirty topics, and has the label of the first, but for a tenth."""
    r = np.random.default_rng(seed)
    often, _ = _vocabulary(r, size, 0.0)
    kinds = [each / each.sum() for each in often * r.gamma(0.3, size=(30, size))]
    messages = []
    for _ in range(N):
        one, two = r.integers(30, size=2)
        count, first = 3 + r.poisson(9), r.random() * 0.5 + 0.5
        words = r.choice(size, size=count, p=first * kinds[one] + (1.0 - first) * kinds[two])
        messages.append((_written(words), bool((one < 10) != (r.random() < 0.1))))
    return messages


def _snippets(name: str) -> Messages:
    """Lines of a number, an opinion and a text, in an order drawn at random."""
    with tarfile.open(SOURCE) as package:
        studies = package.extractfile(f"{FOLDER}/additional_resources/hutto_ICWSM_2014.tar.gz")
        assert studies is not None
        with tarfile.open(fileobj=io.BytesIO(studies.read())) as archive:
            content = archive.extractfile(f"hutto_ICWSM_2014/{name}_GroundTruth.txt")
            assert content is not None
            lines = content.read().decode("utf-8", errors="replace").splitlines()
    rows = [line.split("\t", 2) for line in lines if line.count("\t") >= 2]
    order = np.random.default_rng(3).permutation(len(rows))
    return [(rows[i][2], float(rows[i][1]) > 0.0) for i in order]


GENERATED: dict[str, Callable[[], Messages]] = {
    "two classes": lambda: two_classes(20_000),
    "topics": lambda: topics(20_000),
}
REAL: dict[str, Callable[[], Messages]] = {
    "film reviews": lambda: _snippets("movieReviewSnippets"),
    "posts": lambda: _snippets("tweets"),
}


def streams() -> dict[str, Callable[[], Messages]]:
    """Those that can be had here."""
    return {**GENERATED, **(REAL if SOURCE.exists() else {})}
