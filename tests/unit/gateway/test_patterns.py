"""Patterns of messages and request bodies hold to the last character: `name\\n` is not a name."""

import re
from typing import Annotated

import msgspec
import pytest

from beige import messages
from services.gateway.routes import ENDPOINTS
from services.gateway.routes.prompts import PromptBody


class Lax(msgspec.Struct):
    name: Annotated[str, msgspec.Meta(pattern="^a$")]


def patterns(types):
    """Every pattern that msgspec checks anywhere inside `types`, with where it was found."""
    found = {}

    def walk(type_, where):
        match type_:
            case msgspec.inspect.StrType(pattern=str(pattern)):
                found[where] = pattern
            case msgspec.inspect.StructType(cls=cls, fields=fields) if cls not in seen:
                seen.add(cls)
                for field in fields:
                    walk(field.type, f"{cls.__name__}.{field.name}")
            case msgspec.inspect.UnionType(types=types):
                for one in types:
                    walk(one, where)
            case msgspec.inspect.ListType(item_type=inner) | msgspec.inspect.VarTupleType(item_type=inner):
                walk(inner, where)
            case msgspec.inspect.DictType(key_type=key, value_type=value):
                walk(key, where)
                walk(value, where)

    seen = set()
    for type_ in types:
        walk(msgspec.inspect.type_info(type_), str(type_))
    return found


SPOKEN = [spec.request for spec in messages.METHODS.values()] + [
    type_ for endpoint in ENDPOINTS for type_ in (endpoint.body, endpoint.query) if type_ is not None
]


def test_no_pattern_lets_a_last_newline_through():
    found = patterns(SPOKEN)
    assert {"PromptBody.session", "AuditParameters.agent"} <= set(found)
    lax = {where: p for where, p in found.items() if p.endswith("$") and not p.endswith(r"(?!\n)$")}
    assert lax == {}
    assert patterns([Lax]) == {"Lax.name": "^a$"}, "control"
    assert re.search("^a$", "a\n"), "control: why it matters"


@pytest.mark.parametrize(("session", "right"), [("mine", True), ("mine\n", False), ("mine\nmine", False)])
def test_a_session_is_named_in_one_line(session, right):
    body = msgspec.json.encode({"text": "hello", "session": session})
    if right:
        assert msgspec.json.decode(body, type=PromptBody).session == session
    else:
        with pytest.raises(msgspec.ValidationError, match="session"):
            msgspec.json.decode(body, type=PromptBody)
