"""Reads one answer as it comes, the same way from every vendor's SDK. Touches what an SDK opened, no SDK."""

from __future__ import annotations

import abc
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from typing import Any, ClassVar, Protocol

from services.llm.conversation import StopReason
from services.llm.events import MessageDone, ModelEvent
from services.llm.providers.base import ModelRequest
from services.llm.providers.failures import ModelError, named


class Assembler(Protocol):
    """Puts the events of one stream together. Raises ModelError if they don't make a message."""

    began: bool
    """Whether there was an event of an answer: from then on a lost connection cuts it."""
    usage: dict[str, int]
    """Counted so far (`base.USAGE`); a broken answer tells it, too."""

    def feed(self, event: Any) -> Iterable[ModelEvent]:
        """`event` comes from the SDK, which doesn't check fields: a wrong one raises anything here."""
        ...

    def done(self) -> MessageDone:
        """The whole answer. ModelError if there is none, or only a part."""
        ...


class Client(Protocol):
    """A vendor's, as far as it is used here."""

    async def close(self) -> None: ...


class SdkProvider(abc.ABC):
    """A `Provider` by a vendor's SDK. Its API says what is sent, and how the answer's events are read."""

    scripted: ClassVar[bool] = False

    def __init__(
        self,
        name: str,
        client: Client,
        create: Callable[..., Awaitable[Any]],
        translate: Callable[[Exception, bool], ModelError],
        secrets: Iterable[str],
    ) -> None:
        """`create` is the client's method that opens a stream: looked up here and not in a turn, as the
        SDKs import its part lazily. `secrets` are taken out of errors."""
        self._name, self._client, self._create = name, client, create
        self._translate, self._secrets = translate, list(secrets)

    @abc.abstractmethod
    def begin(self, request: ModelRequest, label: str) -> tuple[dict[str, Any], Assembler]:
        """What `create` is given, and who reads the answer."""

    def label(self, model: str) -> str:
        return f"{self._name}/{model}"

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        label = self.label(request.model)
        sent, assembler = self.begin(request, label)
        try:
            async with await self._create(**sent) as events:
                async for event in events:
                    for arrived in assembler.feed(event):
                        yield arrived
            yield assembler.done()
        except Exception as error:
            failure = self._translate(error, assembler.began)
            raise named(failure, label, self._secrets, assembler.usage) from error

    async def close(self) -> None:
        await self._client.close()


def stopped(began: bool, reason: StopReason | None) -> StopReason:
    """Why an answer stopped. ModelError if its stream is over without one, or never held an answer."""
    if not began:
        raise ModelError("bad_response", "the provider's answer holds no message (a wrong baseUrl?)")
    if reason is None:
        raise ModelError("stream_cut", "the answer ended before it was complete")
    return reason
