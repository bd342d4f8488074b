"""Routes of tokens, for admins.  Only the answer that creates a token has its secret."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from pollux.app.operations.tokens import NAME_CHARS_MAX, OVERLAP, Token
from pollux.server.auth import Role
from pollux.server.routing import Reply, RequestContext, Routes
from pollux.server.schemas.jobs import Duration

NAME_PATTERN = r"^[\p{L}\p{N}_.@:/ -]*$"

routes = Routes("tokens")
PATH = "/api/v2/tokens"


class TokenBody(Struct, frozen=True, forbid_unknown_fields=True):
    role: Literal["viewer", "operator", "admin"]
    name: Annotated[str, Meta(max_length=NAME_CHARS_MAX, extra_json_schema={"pattern": NAME_PATTERN})] = ""
    expires: Duration | None = None


class RotateBody(Struct, frozen=True, forbid_unknown_fields=True):
    overlap: Duration = OVERLAP


class TokenList(Struct, frozen=True):
    tokens: list[Token]


class NewToken(Struct, frozen=True):
    """A token with its secret, which no later answer shows."""

    secret: str
    token: Token


@routes.get(PATH, Role.ADMIN)
async def tokens(context: RequestContext) -> TokenList:
    """List all tokens, without their secrets."""
    return TokenList(await context.operations.tokens.list_tokens())


@routes.post(
    PATH,
    Role.ADMIN,
    answer=NewToken,
    status=201,
    refuses=(409,),
    example={"role": "viewer", "name": "grafana"},
    beyond="an `expires` of zero",
)
async def create(context: RequestContext, body: TokenBody) -> Reply:
    """Create a token; all nodes of the store accept it at once."""
    made = await context.operations.tokens.create_token(body.role, name=body.name, expires=body.expires)
    return Reply(NewToken(made.secret, made.token), 201)


@routes.delete(f"{PATH}/{{token_id}}", Role.ADMIN)
async def revoke(context: RequestContext, token_id: str) -> Token:
    """Revoke a token by its id or name; every node refuses it within seconds."""
    return await context.operations.tokens.revoke_token(token_id)


@routes.post(f"{PATH}/{{token_id}}/rotate", Role.ADMIN, answer=NewToken, status=201, refuses=(409,))
async def rotate(context: RequestContext, token_id: str, body: RotateBody) -> Reply:
    """Replace a token by a new one; the old one stays valid for the overlap."""
    made = await context.operations.tokens.rotate_token(token_id, overlap=body.overlap)
    return Reply(NewToken(made.secret, made.token), 201)
