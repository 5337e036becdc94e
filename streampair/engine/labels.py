"""Stub."""

from __future__ import annotations

import hashlib
import json
from typing import NamedTuple

import numpy as np


def digest_ids(ids):
    out = np.zeros((len(ids), 2), np.uint64)
    for i, each in enumerate(ids):
        if each is not None:
            out[i] = np.frombuffer(hashlib.blake2b(each, digest_size=16).digest(), np.uint64)
    return out


class JoinedLabels(NamedTuple):
    codes: np.ndarray
    times: np.ndarray


class LabelTable:
    def __init__(self, *, after, lateness, max_labels=None, directory=None):
        self.after, self.lateness = after, lateness
        self.rows = {}
        self._used = set()
        self.front = 0

    def add(self, digests, codes, times, partition, offsets):
        late = []
        for i in range(len(codes)):
            if times[i] < self.front - self.lateness:
                late.append(i)
                continue
            self.rows.setdefault(tuple(digests[i].tolist()), []).append(
                (int(times[i]), partition, int(offsets[i]), int(codes[i]))
            )
        return late

    def _found(self, d, t, used):
        return [
            r
            for r in sorted(self.rows.get(tuple(d.tolist()), ()))
            if t - self.lateness <= r[0] <= t + self.after and ((r[1], r[2]) in self._used) is used
        ]

    def join(self, digests, times):
        codes = np.zeros(len(times), np.uint8)
        when = np.zeros(len(times), np.int64)
        for i in range(len(times)):
            if not digests[i].any():
                continue
            f = self._found(digests[i], int(times[i]), False)
            if f:
                codes[i] = f[0][3]
                when[i] = f[0][0]
                self._used |= {(r[1], r[2]) for r in f}
        return JoinedLabels(codes, when)

    def mark_used(self, digests, times, used=True):
        for i in range(len(times)):
            for r in self._found(digests[i], int(times[i]), not used):
                (self._used.add if used else self._used.discard)((r[1], r[2]))

    def expire(self, due):
        self.front = due
        out = []
        for d, rows in list(self.rows.items()):
            keep = []
            for r in rows:
                if r[0] < due - self.lateness:
                    if (r[1], r[2]) not in self._used:
                        out.append((r[1], r[2]))
                    self._used.discard((r[1], r[2]))
                else:
                    keep.append(r)
            self.rows[d] = keep
        return out

    def used(self):
        return json.dumps(sorted(self._used)).encode()

    def load_used(self, data):
        self._used = {tuple(x) for x in json.loads(data or b"[]")}
