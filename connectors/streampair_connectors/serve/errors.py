"""The refusals of the server: a status, a problem and a fix."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["Refusal", "unavailable"]


class Refusal(Exception):
    """A request that is not answered as asked.

    Parameters
    ----------
    status
        HTTP status.
    problem, fix
        What is wrong, and what to do; both are sent to the client.
    headers
        Further headers of the answer.
    """

    def __init__(
        self, status: int, problem: str, *, fix: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(problem)
        self.status = status
        # A lone surrogate, which JSON may have, cannot be sent.
        self.problem = problem.encode("utf-8", "replace").decode()
        self.fix = fix.encode("utf-8", "replace").decode()
        self.headers = dict(headers or {})


def unavailable(problem: str, *, fix: str, seconds: int = 1) -> Refusal:
    """A 503 that says when to ask again."""
    return Refusal(503, problem, fix=fix, headers={"Retry-After": str(seconds)})
