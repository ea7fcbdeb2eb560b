"""The shape of `config.json5`: every key, its type, its limits and what it means.

Keys are camelCase in the file and snake_case here. Nothing that grants power has a default: an
agent's tools and image must be written down. Descriptions end up in `beige config schema`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from beige.messages.tools import HookName

NAME_PATTERN = r"^[a-z0-9][a-z0-9_-]{0,31}$"
Name = Annotated[str, Field(pattern=NAME_PATTERN)]
TOOL_PATTERN = r"^[a-z0-9][a-z0-9_-]{0,63}$"
ToolName = Annotated[str, Field(pattern=TOOL_PATTERN)]
SIZE_PATTERN = r"^[1-9][0-9]*[bkmg]?$"
Size = Annotated[str, Field(pattern=SIZE_PATTERN)]
"""Docker's notation: a number of bytes, or with a unit b, k, m, g."""

IMAGE_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._/:@-]*$"
RUNTIME_PATTERN = r"^[A-Za-z0-9._/-]+$"
ORIGIN_PATTERN = r"^https?://[A-Za-z0-9.\[\]:-]+$"
HOST_PATTERN = r"^[A-Za-z0-9.:-]+$"
IN_WORDS = {
    NAME_PATTERN: "a-z, 0-9, - and _, at most 32 characters, not starting with - or _",
    TOOL_PATTERN: "a-z, 0-9, - and _, at most 64 characters, not starting with - or _",
    SIZE_PATTERN: 'a whole number of bytes, or with a unit: "512m" (b, k, m, g)',
    IMAGE_PATTERN: 'a Docker image such as "beige-sandbox:latest"',
    RUNTIME_PATTERN: 'the name of a Docker runtime such as "runsc"',
    ORIGIN_PATTERN: 'an origin such as "https://app.example.org"',
    HOST_PATTERN: 'a host name or address such as "gateway.example.org" or "127.0.0.1"',
}
"""What each pattern allows, for error messages."""

Api = Literal["anthropic-messages", "openai-completions", "openai-responses", "scripted"]
IMPLIED_API: dict[str, Api] = {"anthropic": "anthropic-messages", "openai": "openai-completions"}
"""Providers whose name says which API they speak."""


class Section(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        alias_generator=to_camel,
        validate_by_name=False,
        validate_by_alias=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
        use_attribute_docstrings=True,
        protected_namespaces=(),
    )


Usd = Annotated[float, Field(ge=0, le=1_000_000)]


class PriceConfig(Section):
    """US dollars per million tokens."""

    input: Usd
    """Input that was not in the provider's prompt cache."""
    output: Usd
    """All that the model writes, its reasoning included."""
    cache_read: Usd | None = None
    """Input read from the prompt cache; left out: as input."""
    cache_write: Usd | None = None
    """Input written to the prompt cache; left out: a quarter more than input."""


class ModelConfig(Section):
    price: PriceConfig | None = None
    """What the provider takes for it. Needed where a budget counts money."""


class ProviderConfig(Section):
    api: Api
    """The wire format it speaks. May be left out for providers named anthropic or openai."""
    api_key: str | None = Field(default=None, repr=False)
    """The provider's key, best as "${VARIABLE}". Known to the llm process alone."""
    base_url: Annotated[str, Field(min_length=1)] | None = None
    """Where the API is, if not at its vendor's address."""
    concurrency: Annotated[int, Field(ge=-1)] = -1
    """Calls in flight at once, over all models, sessions and workers; more wait in line. -1: no limit."""
    script: Annotated[str, Field(min_length=1)] | None = None
    """Only for api "scripted": the file that says what the model answers, relative to this file."""
    headers: dict[str, str] = Field(default={}, repr=False)
    """Extra HTTP headers for each request."""
    timeout_s: Annotated[float, Field(gt=0, le=86400)] = 600.0
    """Longest time to wait for one model call, in seconds."""
    models: dict[Annotated[str, Field(min_length=1, max_length=256)], ModelConfig] = {}
    """What beige should know about the provider's models, by their names there."""


class LlmConfig(Section):
    providers: dict[Name, ProviderConfig]
    """Model providers by name."""


class PluginConfig(Section):
    path: Annotated[str, Field(min_length=1)]
    """The plugin's directory, relative to this file; "bundled:kv" for one shipped with beige."""
    config: dict[str, Any] = Field(default={}, repr=False)
    """The plugin's own settings and secrets. Known to the tools process alone."""


class ChannelDefaults(Section):
    """Below what is set for a conversation, above what beige itself has."""

    verbose: bool | None = None
    """Announce each tool call; left out: no."""
    streaming: bool | None = None
    """Show the answer while it is written, where the channel can; left out: yes."""


class ChannelConfig(Section):
    adapter: Name | None = None
    """Which of the plugins' channels it is; left out: the one of this channel's own name."""
    agents: Annotated[tuple[Name, ...], Field(min_length=1, max_length=64)]
    """The agents that may be spoken to through it, and no other; the first one if none is named."""
    defaults: ChannelDefaults = ChannelDefaults()
    """Settings of its conversations."""
    config: dict[str, Any] = Field(default={}, repr=False)
    """The channel's own settings and secrets. Known to the channels process alone."""


class ModelRef(Section):
    provider: str
    """A name from llm.providers."""
    model: Annotated[str, Field(min_length=1)]
    """The provider's name of the model."""
    thinking_level: Literal["off", "minimal", "low", "medium", "high"] = "off"
    """How much the model may think before it answers."""
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    """Longest answer in tokens; left out: the provider's or the SDK's limit."""
    context_window: Annotated[int, Field(ge=4096, le=100_000_000)] | None = None
    """Tokens that a conversation may have; left out: known by the model's name, else 128,000."""
    compaction_threshold: Annotated[int, Field(ge=1024, le=100_000_000)] | None = None
    """Tokens above which older turns are summarised; left out: 16,384 below the window."""


class MountConfig(Section):
    source: Annotated[str, Field(min_length=1, max_length=4096)]
    """A directory or file of the host, by its absolute path."""
    target: Annotated[str, Field(min_length=1, max_length=4096)]
    """Where the container sees it, e.g. "/mnt/data"."""
    read_only: bool = True
    """false lets the agent change what is there."""


class EgressConfig(Section):
    allow: tuple[Annotated[str, Field(min_length=1, max_length=260)], ...]
    """Where the agent may connect to: "host", "*.domain", "*", each with ":port" or for ports 80 and 443."""
    connections: Annotated[int, Field(ge=1, le=128)] = 32
    """Most connections open at once; more wait in line."""
    transfer_size: Size = "4g"
    """Most that one connection may carry, both ways together."""
    idle_s: Annotated[float, Field(ge=1, le=43200)] = 300.0
    """Longest time a connection may carry nothing, in seconds."""
    duration_s: Annotated[float, Field(ge=1, le=43200)] = 3600.0
    """Longest time a connection may last, in seconds."""


OPEN_DEFAULTS = {"memory": "2g", "pids": 1024, "tmpSize": "512m", "deadlineS": 1800.0}
"""What the profile "open" has instead of the defaults below: installing packages takes more."""


class SandboxConfig(Section):
    image: Annotated[str, Field(pattern=IMAGE_PATTERN, max_length=255)]
    """The Docker image of the agent's container, e.g. "beige-sandbox:latest"."""
    profile: Literal["sealed", "open"] = "sealed"
    """The walls around the container. "sealed": no network, read-only root. "open": a root that can be
    written, so that packages can be installed, and larger limits."""
    root: bool = False
    """Profile "open" only: commands are root inside the container, as apt needs."""
    network: Literal["none", "bridge"] = "none"
    """Profile "open" only. "bridge" takes a wall away: the container hangs on the engine's own bridge, and
    what goes over it is neither decided nor recorded. Egress is the way that is."""
    egress: EgressConfig | None = None
    """The way to the internet, through a proxy that asks policy; left out: there is none."""
    runtime: Annotated[str, Field(pattern=RUNTIME_PATTERN)] | None = None
    """A Docker runtime other than the engine's default, e.g. "runsc" (gVisor)."""
    memory: Size = "512m"
    """Most memory the container may use."""
    cpus: Annotated[float, Field(gt=0, le=1024)] = 1.0
    """CPU time per second the container may use, in cores."""
    pids: Annotated[int, Field(ge=16, le=32768)] = 128
    """Most processes and threads in the container."""
    tmp_size: Size = "64m"
    """Size of /tmp, in memory."""
    home_size: Size = "128m"
    """Size of the home directory, in memory."""
    open_files: Annotated[int, Field(ge=64, le=1048576)] = 4096
    """Most files one process may have open."""
    file_size: Size = "2g"
    """Largest file a process may write."""
    autostart: bool = False
    """Make the container when beige starts, not when it is first needed."""
    workspace_size: Size | None = None
    """Most the workspace may hold; left out: no limit. Needs root."""
    extra_mounts: Annotated[tuple[MountConfig, ...], Field(max_length=16)] = ()
    """More of the host for the agent to see; what would give power away is refused."""
    deadline_s: Annotated[float, Field(gt=0, le=86400)] = 600.0
    """Longest time one command may run, in seconds."""
    output_limit: Annotated[int, Field(ge=1024, le=1024 * 1024)] = 256 * 1024
    """Bytes kept of a command's output, per stream; the rest is cut with a notice."""


class LimitConfig(Section):
    tokens: Annotated[int, Field(ge=1, le=10**15)] | None = None
    """Most tokens, input and output, cached or not."""
    usd: Annotated[float, Field(ge=0.000001, le=10**9)] | None = None
    """Most US dollars, by the prices in llm.providers.<name>.models."""
    soft: Annotated[float, Field(gt=0, le=1)] = 0.8
    """The part of the limit at which the caller is warned. 1: never."""


class BudgetConfig(Section):
    session: LimitConfig | None = None
    """For each session of the agent."""
    day: LimitConfig | None = None
    """For each day; it begins at midnight UTC."""
    total: LimitConfig | None = None
    """For ever: it is never reset."""


class HouseBudgetConfig(Section):
    day: LimitConfig | None = None
    """For each day and all agents together; it begins at midnight UTC."""


class HookConfig(Section):
    plugin: Name
    """The plugin that listens: a name from plugins, whose plugin.json lists the hooks."""
    on: Annotated[tuple[HookName, ...], Field(min_length=1, max_length=3)]
    """What it listens to: prePrompt, postResponse, modelSwitched."""
    observe: bool = False
    """true: it is told and decides nothing. The answer is not held back until it has answered."""
    on_failure: Literal["refuse", "continue"] = "refuse"
    """When it crashes, is late or is not there. "refuse": the prompt, or the answer, goes no further.
    "continue": it goes on without this plugin's word."""
    timeout_s: Annotated[float, Field(gt=0, le=600)] = 10.0
    """Longest time it may take, in seconds."""


class AgentConfig(Section):
    model: ModelRef
    """The model that drives the agent."""
    fallback_models: tuple[ModelRef, ...] = ()
    """Models to try, in order, when the first can't answer."""
    tools: tuple[ToolName, ...]
    """Plugin tools the agent may call; [] for none. It always has the core tools read, write, patch, exec."""
    plugin_configs: dict[Name, dict[str, Any]] = Field(default={}, repr=False)
    """Per plugin, settings merged over plugins.<name>.config for this agent (arrays are replaced)."""
    hooks: Annotated[tuple[HookConfig, ...], Field(max_length=16)] = ()
    """Plugins that are shown the agent's prompts and answers, in this order; no other is."""
    sandbox: SandboxConfig
    """The agent's container."""
    system_prompt: str = ""
    """Added to what beige tells the model about its tools."""
    max_turns: Annotated[int, Field(ge=1, le=10000)] = 100
    """Most model calls for one prompt."""
    budget: BudgetConfig = BudgetConfig()
    """What the agent's models may use; nothing is limited unless it is written."""


class ScaleConfig(Section):
    llm: Annotated[int, Field(ge=1, le=8)] = 1
    """llm processes; sessions are spread over them."""
    tools: Annotated[int, Field(ge=1, le=8)] = 1
    """tools processes; each loads every plugin."""


class AuditConfig(Section):
    max_bytes: Annotated[int, Field(ge=64 * 1024)] = 64 * 1024 * 1024
    """Size at which the audit log is rotated; nothing is ever deleted."""
    sync: Literal["written", "disk"] = "written"
    """When a record counts: "written" (survives the process) or "disk" (survives a power cut, slower)."""


Origin = Annotated[str, Field(pattern=ORIGIN_PATTERN, max_length=255)]
HostName = Annotated[str, Field(pattern=HOST_PATTERN, max_length=253)]


class TlsConfig(Section):
    cert: Annotated[str, Field(min_length=1)]
    """The certificate chain's file (PEM), relative to this file."""
    key: Annotated[str, Field(min_length=1)]
    """The private key's file (PEM), relative to this file."""


class GatewayConfig(Section):
    enabled: bool = True
    """Whether the HTTP API runs."""
    host: HostName = "127.0.0.1"
    """The address it listens at. Another than this machine's own needs tls or insecureBind."""
    port: Annotated[int, Field(ge=0, le=65535)] = 7433
    """The TCP port; 0: any free one, which run/gateway-http.url then names."""
    tls: TlsConfig | None = None
    """Serve HTTPS with this certificate."""
    insecure_bind: bool = False
    """Listen beyond this machine without TLS: tokens can be read by whoever sees the traffic."""
    allowed_hosts: tuple[HostName, ...] = ()
    """Names by which it may be addressed, besides its address and localhost."""
    cors: tuple[Origin, ...] = ()
    """Web origins whose pages may use it, e.g. "https://app.example.org"."""
    max_body: Annotated[int, Field(ge=1024, le=64 * 1024 * 1024)] = 2 * 1024 * 1024
    """Bytes of one request's body."""
    read_timeout_s: Annotated[float, Field(ge=1, le=3600)] = 30.0
    """Longest time a request may take to arrive, in seconds; its head, at most 10 of them."""
    max_connections: Annotated[int, Field(ge=1, le=20000)] = 1000
    """Connections open at once."""


class EgressServiceConfig(Section):
    upstream_proxy: Annotated[str, Field(min_length=1)] | None = Field(default=None, repr=False)
    """A proxy that this machine must use, "http://[user:password@]host:port", or "environment" for the one in
    HTTPS_PROXY. It resolves the names then, so that private addresses behind names can't be refused."""


class Config(Section):
    llm: LlmConfig
    """Language models."""
    plugins: dict[Name, PluginConfig] = {}
    """Plugins by name; each provides tools, hooks, channels, or some of them."""
    channels: dict[Name, ChannelConfig] = {}
    """Channels by name: where people reach agents, besides the terminal and HTTP."""
    agents: dict[Name, AgentConfig]
    """Agents by name."""
    scale: ScaleConfig = ScaleConfig()
    """How many processes of a kind run."""
    audit: AuditConfig = AuditConfig()
    """The audit log."""
    budget: HouseBudgetConfig = HouseBudgetConfig()
    """What all agents' models together may use."""
    egress: EgressServiceConfig = EgressServiceConfig()
    """How connections of agents leave this machine."""
    gateway: GatewayConfig = GatewayConfig()
    """The HTTP API."""

    @property
    def switched_off(self) -> frozenset[str]:
        """Programs that don't run."""
        off = {"gateway": not self.gateway.enabled, "channels": not self.channels}
        return frozenset(program for program, is_off in off.items() if is_off)
