"""The plugin API and the reading of plugins' manifests. Imports no plugin code."""

from beige.plugins.api import (
    DEFAULT_TIMEOUT_S,
    MAX_TIMEOUT_S,
    CreatePlugin,
    Plugin,
    PluginContext,
    PluginRegistrar,
    ToolError,
    ToolHandler,
    ToolInvocation,
    ToolOutput,
    ToolResultLike,
    UsageError,
)
from beige.plugins.hooks import HOOKS, HookAnswer, HookHandler, HookInvocation, Refuse, Replace
from beige.plugins.manifest import (
    Manifest,
    Provides,
    channel_owners,
    load_manifest,
    resolve_plugin_dir,
    tool_name_problem,
    tool_owners,
)
from beige.plugins.merge import deep_merge
from beige.plugins.skills import skills

__all__ = [
    "DEFAULT_TIMEOUT_S",
    "HOOKS",
    "MAX_TIMEOUT_S",
    "CreatePlugin",
    "HookAnswer",
    "HookHandler",
    "HookInvocation",
    "Manifest",
    "Plugin",
    "PluginContext",
    "PluginRegistrar",
    "Provides",
    "Refuse",
    "Replace",
    "ToolError",
    "ToolHandler",
    "ToolInvocation",
    "ToolOutput",
    "ToolResultLike",
    "UsageError",
    "channel_owners",
    "deep_merge",
    "load_manifest",
    "resolve_plugin_dir",
    "skills",
    "tool_name_problem",
    "tool_owners",
]
