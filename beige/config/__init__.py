"""The configuration file: its shape, its variables, its checks."""

from beige.config.loading import ALL_SECRETS, build, check_everything, load
from beige.config.models import (
    AgentConfig,
    AuditConfig,
    BudgetConfig,
    ChannelConfig,
    ChannelDefaults,
    Config,
    EgressConfig,
    GatewayConfig,
    HookConfig,
    HouseBudgetConfig,
    LimitConfig,
    LlmConfig,
    ModelConfig,
    ModelRef,
    MountConfig,
    PluginConfig,
    PriceConfig,
    ProviderConfig,
    SandboxConfig,
    ScaleConfig,
)
from beige.config.mounts import Mount, examine_mounts
from beige.config.problems import ConfigProblems, Problem
from beige.config.variables import SECRET_SECTIONS, variables_for

__all__ = [
    "ALL_SECRETS", "SECRET_SECTIONS", "AgentConfig", "AuditConfig", "BudgetConfig", "ChannelConfig",
    "ChannelDefaults", "Config", "ConfigProblems", "EgressConfig", "GatewayConfig", "HookConfig",
    "HouseBudgetConfig", "LimitConfig", "LlmConfig",
    "ModelConfig", "ModelRef", "Mount", "MountConfig", "PluginConfig", "PriceConfig", "Problem",
    "ProviderConfig", "SandboxConfig", "ScaleConfig", "build", "check_everything", "examine_mounts",
    "load", "variables_for",
]  # fmt: skip
