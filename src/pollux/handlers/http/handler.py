"""Handler `http`: parses the params of a job once, opens connections at the first poll, reports values and changes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

import msgspec

from pollux.errors import InvalidInput
from pollux.handlers.http.addresses import AddressPolicy, Network, networks_of, refused_host
from pollux.handlers.http.errors import UnfitParams
from pollux.model import Job
from pollux.registry import Context, Observed, Registry
from pollux.secrets import has_reference, may_hold_references, texts_of

if TYPE_CHECKING:
    from pollux.handlers.http.client import HttpClient
    from pollux.handlers.http.options import HttpOptions
    from pollux.handlers.http.request import PreparedPoll

NAME = "http"
PER_TARGET = 4
PER_TARGET_MAX = 1_000
PREPARED_MAX = 20_000
_QUESTION = ("url", "method", "headers", "body", "json", "auth", "take")  # what makes it another request


@cache
def _options() -> ModuleType:
    """Import the module of the params at the first use, and return it."""
    return import_module("pollux.handlers.http.options")


class Http:
    """The handler, called with the params of a job; also the rules for its params."""

    def __init__(self) -> None:
        self.allow_networks: tuple[Network, ...] = ()
        self.per_target = PER_TARGET
        self.resolver: Any = None  # another resolver of names; None: the system's
        self._client: HttpClient | None = None
        self._opening: asyncio.Lock | None = None
        self._prepared: dict[str, PreparedPoll] = {}

    def set(self, *, allow_networks: Sequence[object] | None = None, per_target: int | None = None) -> None:
        """Set the app's options for all polls; the networks only before the first poll."""
        if allow_networks is not None:
            self.allow_networks = networks_of(allow_networks)
        if per_target is not None:
            if not 1 <= per_target <= PER_TARGET_MAX:
                raise InvalidInput(f"{per_target} requests at a time", cure=f"give 1 to {PER_TARGET_MAX}")
            self.per_target = per_target
            if self._client is not None:
                self._client.set_per_target(per_target)

    async def __call__(self, ctx: Context, /, **params: Any) -> Observed:
        job = ctx.job
        client = self._client or await self._open()
        prepared = self._prepared.get(job.id)
        if prepared is None or not prepared.fits(params, _source_of(ctx), job.timeout_ms):
            prepared = self._prepare(ctx, params)
        return await client.poll(prepared, job.memory.fingerprint, ctx.traceparent, target=ctx.run.target)

    def check(self, params: Mapping[str, Any], *, partial: bool) -> None:
        _options().check_options(params, partial=partial)

    def check_by_api(self, params: Mapping[str, Any]) -> None:
        _options().check_by_api(params)

    def target_of(self, params: Mapping[str, Any]) -> str:
        target: str = _options().target_of(params)
        return target

    def out_of_reach(self, params: Mapping[str, Any]) -> str:
        """Return why a job from the API could not poll its URL, as far as that is known before a name is resolved."""
        try:
            host = _options().URL(params["url"]).raw_host or ""
            return refused_host(host, AddressPolicy(inside=False, allowed=self.allow_networks))
        except (KeyError, TypeError, ValueError, InvalidInput):
            return ""  # `check` reports invalid params

    async def _open(self) -> HttpClient:
        """Return the client; its imports take a while and are done in a thread."""
        self._opening = self._opening or asyncio.Lock()
        async with self._opening:
            if self._client is None:
                module = await asyncio.to_thread(import_module, "pollux.handlers.http.client")
                inside, outside = AddressPolicy(inside=True), AddressPolicy(inside=False, allowed=self.allow_networks)
                self._client = module.HttpClient(inside, outside, per_target=self.per_target, resolver=self.resolver)
        return self._client

    def _prepare(self, ctx: Context, params: dict[str, Any]) -> PreparedPoll:
        from pollux.handlers.http.options import read_options
        from pollux.handlers.http.request import PreparedPoll

        job = ctx.job
        try:
            options, source = read_options(params), _source_of(ctx)
            is_trusted = may_hold_references(source)
            _check_payload(job, ctx.run.payload or {}, options)
        except InvalidInput as error:
            raise UnfitParams(str(error)) from None
        recipe = _recipe(job, ctx.run.payload)
        prepared = PreparedPoll(
            params, options, recipe=recipe, source=source, is_trusted=is_trusted, job_ms=job.timeout_ms
        )
        if len(self._prepared) >= PREPARED_MAX:
            self._prepared.pop(next(iter(self._prepared)))
        self._prepared[job.id] = prepared
        return prepared

    async def close(self) -> None:
        client, self._client, self._opening = self._client, None, None
        if client is not None:
            await client.close()


def _source_of(ctx: Context) -> str:
    """Return the source of the URL: the job's, or the API if the run brought it, whose caller is unknown."""
    payload = ctx.run.payload
    return "run" if payload and "url" in payload else ctx.job.source


def _check_payload(job: Job, payload: Mapping[str, Any], options: HttpOptions) -> None:
    """Refuse files in what a run brings, and secrets of the job sent to another place than the job names."""
    if options.ca and ("ca" in payload or not may_hold_references(job.source)):
        what = "a job that came by API names no file, nor does a run"
        raise InvalidInput(what, where="ca", cure="declare it in a file or code")
    if not ({"url", "verify"} & payload.keys() and any(has_reference(text) for _, text in texts_of(job.params))):
        return
    from yarl import URL

    own = job.params.get("url")
    is_there = isinstance(own, str) and not has_reference(own) and URL(own).origin() == options.url.origin()
    if not is_there or "verify" in payload:
        what = "the job holds secrets, and this run would send them elsewhere or unprotected"
        raise InvalidInput(what, where="url", cure="name the URL in the job; a run may change its path and query")


def _recipe(job: Job, payload: Mapping[str, Any] | None) -> str:
    """Return the digest of the stored params, in which secrets are references."""
    from pollux.handlers.http.response import recipe_of

    params = {**job.params, **(payload or {})}
    question = {name: params[name] for name in _QUESTION if name in params}
    return recipe_of(msgspec.json.encode(question, order="deterministic"))


def register_http(registry: Registry) -> Http:
    http = Http()
    registry.add(NAME, http, rules=http)
    registry.at_close(http.close)
    return http
