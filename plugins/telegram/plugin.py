"""The channel `telegram`: a bot that polls for messages of listed people and gives them to agents."""

from __future__ import annotations

from typing import Any

from bot import Bot
from bot_api import BotApi
from bot_inbox import Inbox
from bot_settings import Settings, settings_of

from beige.plugins import PluginContext, PluginRegistrar
from beige.plugins.channels import ChannelContext


class Adapter:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    async def run(self, ctx: ChannelContext) -> None:
        async with BotApi(self._settings.api_base, self._settings.token) as api:
            await Bot(ctx, api, self._settings, Inbox(ctx.data_dir / "inbox.sqlite3")).serve()


class Telegram:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def register(self, reg: PluginRegistrar) -> None:
        reg.channel("telegram", Adapter(self._settings))


def create_plugin(config: dict[str, Any], ctx: PluginContext) -> Telegram:
    return Telegram(settings_of(config))
