"""Built-in handlers: `http` polls a URL, `exec` runs a command."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pollux.errors import InvalidInput
from pollux.registry import Registry

__all__ = ["BUILT_IN", "BuiltIn", "params_in_file"]

COMMANDS_OFF = "commands are not allowed here"
BUILT_IN = ("http", "exec")  # the keys of a job in a file, in place of `python`


class BuiltIn:
    """The built-in handlers of an app, to be set up before it starts."""

    def __init__(self, registry: Registry) -> None:
        from pollux.handlers.http import register_http

        self.http = register_http(registry)
        self._registry = registry
        registry.refuse("exec", InvalidInput(COMMANDS_OFF, cure="write allow_exec: true, or Pollux(allow_exec=True)"))

    def allow_exec(self, memory: Callable[[], int]) -> None:
        """Let jobs run commands; `memory`: the bytes that each may use unless its job sets a limit."""
        from pollux.handlers.exec import register_exec

        if self._registry.get("exec") is None:
            register_exec(self._registry, memory=memory)


def params_in_file(name: str, value: object, *, partial: bool) -> dict[str, Any]:
    """Return the params of a job from what a file has under the handler's name; the same checks as everywhere."""
    if name == "exec":
        from pollux.handlers.exec import params_of

        return params_of(value, partial=partial)
    return _http_params(value, partial=partial)


def _http_params(value: object, *, partial: bool) -> dict[str, Any]:
    from pollux.handlers.http.options import check_options

    params = {"url": value} if isinstance(value, str) else value
    if not isinstance(params, Mapping):
        cure = 'write http: "https://example.com/health", or http: {url: "https://example.com/health", expect: 200}'
        raise InvalidInput("it is neither a URL nor a mapping", cure=cure)
    check_options(params, partial=partial, in_file=True)
    return dict(params)
