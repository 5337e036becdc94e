"""Tokens for SASL OAUTHBEARER: from a file, from a token endpoint, or signed for Amazon MSK."""

from __future__ import annotations

import asyncio
import base64
import functools
import math
import ssl
import time
from urllib.parse import quote_plus

import aiohttp
import msgspec
from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaConnectionError

from streampair.errors import ConfigError
from streampair_connectors.config import KafkaConfig
from streampair_connectors.config.secrets import read_secret

__all__ = ["TokenError", "token_provider"]

_SECONDS = 10.0  # for an answer of the token endpoint
_MARGIN_SECONDS = 30.0  # a token is used until so long before it expires
_LARGEST = 1_000_000  # bytes of an answer


class TokenError(KafkaConnectionError):  # type: ignore[misc]  # untyped base
    """No token can be had. The client takes it for a broker that cannot be reached.

    `again`: whether one can be had later without a change by the user.
    """

    def __init__(self, problem: str, fix: str, *, again: bool = False) -> None:
        super().__init__(problem)
        self.problem = problem
        self.fix = fix
        self.again = again


@functools.lru_cache(maxsize=16)
def token_provider(config: KafkaConfig) -> AbstractTokenProvider:
    """Return the source of tokens that the configuration names; all clients of a process share it.

    `token_provider.cache_clear()` makes later clients ask for a new token: a broker may refuse one before it
    expires.
    """
    if config.oauth_token_file is not None:
        return _TokenFile(config)
    if config.oauth_token_url is not None:
        return _ClientCredentials(config)
    return _MskSigner(config)


class _TokenFile(AbstractTokenProvider):  # type: ignore[misc]  # untyped base
    """A file that somebody else keeps fresh, as Kubernetes does with projected tokens. Read each time."""

    def __init__(self, config: KafkaConfig) -> None:
        self._config = config

    async def token(self) -> str:
        """Return the content of the file."""
        try:
            secret = read_secret("oauth_token", self._config.oauth_token_file)
        except ConfigError as error:
            raise TokenError(error.problem, error.fix) from None
        assert secret is not None
        return secret.get_secret_value()


class _Answer(msgspec.Struct):
    access_token: str
    expires_in: float = 60.0  # some endpoints send it as text

    @property
    def seconds(self) -> float:
        """For how long it may be used."""
        lasts = self.expires_in if 0.0 < self.expires_in < math.inf else 0.0
        return max(lasts - _MARGIN_SECONDS, 0.5 * lasts)


class _ClientCredentials(AbstractTokenProvider):  # type: ignore[misc]  # untyped base
    """The client-credentials grant of OAuth 2.0 (RFC 6749, section 4.4)."""

    def __init__(self, config: KafkaConfig) -> None:
        self._config = config
        self._token = ""
        self._until = 0.0

    async def token(self) -> str:
        """Return a token that is valid for some time, the last one if it is."""
        if time.monotonic() >= self._until:
            begin = time.monotonic()
            answer = await self._request()
            self._token = answer.access_token
            self._until = begin + answer.seconds
        return self._token

    async def _request(self) -> _Answer:
        config = self._config
        url = str(config.oauth_token_url)
        try:
            secret = config.oauth_client_secret()
        except ConfigError as error:
            raise TokenError(error.problem, error.fix) from None
        assert secret is not None
        assert config.oauth_client_id is not None
        form = {"grant_type": "client_credentials"}
        if config.oauth_scope is not None:
            form["scope"] = config.oauth_scope
        # Neither the answer nor the request is quoted in an error: both hold secrets.
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_SECONDS)) as session,
                session.post(
                    url,
                    data=form,
                    headers={
                        "Accept": "application/json",
                        "Authorization": _basic(config.oauth_client_id, secret.get_secret_value()),
                    },
                    allow_redirects=False,
                    ssl=ssl.create_default_context(),
                ) as response,
            ):
                if response.status != 200:
                    raise TokenError(
                        f"the token endpoint {url} answers {response.status} for the client "
                        f"{config.oauth_client_id!r}",
                        "check kafka.oauth_client_id, its secret, oauth_scope and oauth_token_url",
                        again=response.status >= 500 or response.status == 429,
                    )
                answer = await response.content.read(_LARGEST)
                return msgspec.json.decode(answer, type=_Answer, strict=False)
        except msgspec.MsgspecError:
            raise TokenError(
                f"the token endpoint {url} answers without an access_token", "check kafka.oauth_token_url"
            ) from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise TokenError(
                f"the token endpoint {url} does not answer: {type(error).__name__}",
                "start it, or correct kafka.oauth_token_url",
                again=True,
            ) from None


def _basic(client: str, secret: str) -> str:
    """Both are encoded as in a form first (RFC 6749, section 2.3.1)."""
    both = f"{quote_plus(client)}:{quote_plus(secret)}"
    return f"Basic {base64.b64encode(both.encode()).decode()}"


class _MskSigner(AbstractTokenProvider):  # type: ignore[misc]  # untyped base
    """Tokens of Amazon MSK: its own signer, with the credentials that the AWS libraries find."""

    def __init__(self, config: KafkaConfig) -> None:
        self._region = str(config.oauth_msk_region)
        self._token = ""
        self._until = 0.0

    async def token(self) -> str:
        """Return a token that is valid for some time, the last one if it is."""
        if time.time() >= self._until:
            self._token, self._until = await asyncio.to_thread(self._sign)
        return self._token

    def _sign(self) -> tuple[str, float]:
        try:
            from aws_msk_iam_sasl_signer import MSKAuthTokenProvider
        except ImportError:
            raise TokenError(
                "kafka.oauth_msk_region needs the signer of Amazon MSK",
                "pip install '.[msk]' in the clone, or pip install aws-msk-iam-sasl-signer-python",
            ) from None
        try:
            token, expires_ms = MSKAuthTokenProvider.generate_auth_token(self._region)
        except Exception as error:  # of any kind; its text may name credentials
            raise TokenError(
                f"no token for Amazon MSK can be signed: {type(error).__name__}",
                "give this process AWS credentials: a role, a profile, or AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY",
            ) from None
        return token, expires_ms / 1000.0 - _MARGIN_SECONDS
