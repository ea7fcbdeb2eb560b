"""What a configuration file may say, and the line it gets for what it may not."""

from __future__ import annotations

from pathlib import Path

import pytest

from beige.config import ALL_SECRETS, check_everything, load
from beige.errors import ConfigError
from beige.paths import Home

SEED = """
// Single config file (JSON5: JSON with comments) drives the entire system.
{
  llm: {
    providers: {
      anthropic: { apiKey: "${ANTHROPIC_API_KEY}" },
      // zai: { baseUrl: "https://api.zai.com/v1", apiKey: "${ZAI_API_KEY}", api: "openai-completions" },
    },
  },
  plugins: {
    notes: { path: "./plugins/notes" },
  },
  agents: {
    travel: {
      model: { provider: "anthropic", model: "claude-sonnet-4-6", thinkingLevel: "medium" },
      fallbackModels: [{ provider: "anthropic", model: "claude-3-5-sonnet-20241022" }],
      tools: ["notes"],
      pluginConfigs: { notes: { allowForcePush: ["del"] } },
      sandbox: { image: "beige-sandbox:latest" },
    },
  },
}
"""


@pytest.fixture
def home(tmp_path: Path) -> Home:
    plugin = tmp_path / "plugins" / "notes"
    plugin.mkdir(parents=True)
    (plugin / "plugin.json").write_text(
        '{"name": "notes", "description": "Notes.", "provides": {"tools": ["notes", "notes_find"]}}'
    )
    (tmp_path / "lines.json5").write_text("{}")
    return Home(tmp_path)


def problems_of(home: Home, text: str, secrets: frozenset[str] = ALL_SECRETS, **environ: str) -> list[str]:
    home.config.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(home, secrets, environ)
    return str(caught.value).splitlines()


def test_the_seeds_configuration_loads(home: Home) -> None:
    home.config.write_text(SEED)
    config = load(home, frozenset({"llm"}), {"ANTHROPIC_API_KEY": "k"})
    agent = config.agents["travel"]
    assert agent.model.thinking_level == "medium"
    assert [model.model for model in agent.fallback_models] == ["claude-3-5-sonnet-20241022"]
    assert agent.tools == ("notes",)
    assert agent.plugin_configs == {"notes": {"allowForcePush": ["del"]}}
    assert (agent.sandbox.image, agent.sandbox.profile) == ("beige-sandbox:latest", "sealed")
    assert config.llm.providers["anthropic"].api == "anthropic-messages"
    assert config.llm.providers["anthropic"].api_key == "k"


def test_a_secret_section_not_asked_for_keeps_its_variables(home: Home) -> None:
    home.config.write_text(SEED)
    config = load(home, frozenset({"tools"}), {"ANTHROPIC_API_KEY": "k"})
    assert config.llm.providers["anthropic"].api_key == "${ANTHROPIC_API_KEY}"


def test_secrets_are_not_in_the_representation(home: Home) -> None:
    home.config.write_text(
        SEED.replace('path: "./plugins/notes"', 'path: "./plugins/notes", config: {t: "${T}"}')
    )
    config = load(home, ALL_SECRETS, {"ANTHROPIC_API_KEY": "very-secret", "T": "very-secret"})
    assert "very-secret" not in repr(config) + str(config)


def test_checking_everything_reports_what_only_one_process_would_see(home: Home) -> None:
    home.config.write_text(SEED)
    with pytest.raises(
        ConfigError, match=r"llm\.providers\.anthropic\.apiKey: the variable ANTHROPIC_API_KEY"
    ):
        check_everything(home, {})


def test_all_problems_are_reported_at_once(home: Home) -> None:
    text = SEED.replace('provider: "anthropic", model: "claude-s', 'provider: "antropic", modle: "claude-s')
    text = (
        text.replace("medium", "mediun")
        .replace('["notes"]', '["note"]')
        .replace("image:", "pids: true, image:")
    )
    assert problems_of(home, text, ANTHROPIC_API_KEY="k") == [
        "agents.travel.model.model: is missing; it is: the provider's name of the model",
        "agents.travel.model.thinkingLevel: 'mediun' is not allowed; "
        'did you mean "medium"? allowed: high, low, medium, minimal, off',
        'agents.travel.model.modle: unknown key; did you mean "model"? '
        "allowed: compactionThreshold, contextWindow, maxTokens, model, provider, thinkingLevel",
        "agents.travel.sandbox.pids: must be a whole number, not true or false",
        "agents.travel.model.provider: no such provider: 'antropic'; "
        'did you mean "anthropic"? allowed: anthropic',
        "agents.travel.tools[0]: no plugin provides the tool 'note'; "
        'did you mean "notes"? allowed: notes, notes_find',
    ]


AGENT = 'model: { provider: "s", model: "m" }, tools: [], sandbox: { image: "i" }'
SCRIPTED = 's: { api: "scripted", script: "lines.json5" }'


def config_text(providers: str = SCRIPTED, agent: str = AGENT, more: str = "", name: str = "a") -> str:
    return f"{{ llm: {{ providers: {{ {providers} }} }}, agents: {{ {name}: {{ {agent} }} }}, {more} }}"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        pytest.param("{}", "llm: is missing", id="nothing"),
        pytest.param("[]", "config.json5: must hold one object", id="array"),
        pytest.param("{a: 1,\n b: }", 'config.json5, line 2, column 5: unexpected "}"', id="syntax"),
        pytest.param("{a: 1", "config.json5, line 1, column 6: unexpected end of input", id="torn"),
        pytest.param("{a: 1, a: 2}", 'config.json5: Duplicate key "a"', id="duplicate"),
        pytest.param("[" * 3000, "config.json5: is nested too deeply", id="deep"),
        pytest.param('{a: "\\uD800"}', "config.json5: holds half a character", id="surrogate"),
        pytest.param(
            config_text(more="agent: {}"), 'agent: unknown key; did you mean "agents"?', id="unknown-key"
        ),
        pytest.param(config_text(more="scale: 2"), "scale: must be an object, not a number", id="type"),
        pytest.param(
            config_text(more="scale: { llm: 9 }"), "scale.llm: should be less than or equal to 8", id="range"
        ),
        pytest.param(config_text(name='"A b"'), 'agents["A b"]: has the wrong form; allowed: a-z', id="name"),
        pytest.param(
            config_text(name="a..").replace("a..", '"../x"'), 'agents["../x"]: has the wrong form', id="path"
        ),
        pytest.param(
            config_text("s: { apiKey: 'k' }"), "llm.providers.s.api: is missing; allowed: anthr", id="api"
        ),
        pytest.param(config_text("openai: {}"), "llm.providers.openai.apiKey: is missing", id="no-key"),
        pytest.param(
            config_text('openai: { apiKey: " " }'), "llm.providers.openai.apiKey: is empty", id="empty-key"
        ),
        pytest.param(
            config_text(SCRIPTED.replace("}", ", concurrency: 0 }")),
            "llm.providers.s.concurrency: 0 would let no call through; 1 or more; -1 for no limit",
            id="concurrency",
        ),
        pytest.param(
            config_text('s: { api: "scripted" }'), "llm.providers.s.script: is missing", id="no-script"
        ),
        pytest.param(
            config_text('s: { api: "scripted", script: "x" }'),
            "llm.providers.s.script: 'x' is not a file",
            id="script",
        ),
        pytest.param(
            config_text('openai: { apiKey: "k", script: "x" }'),
            "llm.providers.openai.script: is only",
            id="stray-script",
        ),
        pytest.param(
            config_text(agent='tools: [], sandbox: { image: "i" }'), "agents.a.model: is missing", id="model"
        ),
        pytest.param(
            config_text(agent='model: { provider: "s", model: "m" }, sandbox: { image: "i" }'),
            "agents.a.tools: is missing; it is: plugin tools the agent may call",
            id="tools-have-no-default",
        ),
        pytest.param(
            config_text(agent='model: { provider: "s", model: "m" }, tools: []'),
            "agents.a.sandbox: is missing",
            id="image-has-no-default",
        ),
        pytest.param(
            config_text(agent=AGENT.replace("[]", '["exec"]')),
            "agents.a.tools[0]: 'exec' is a core",
            id="core",
        ),
        pytest.param(
            config_text(agent=AGENT + ", pluginConfigs: { kv: {} }"),
            "agents.a.pluginConfigs.kv: no such plugin; no plugin is configured",
            id="plugin-config",
        ),
        pytest.param(
            config_text(agent=AGENT.replace('"i"', '"i", memory: "256m"')),
            "agents.a.sandbox.memory: 256m is too little: tmpSize 64m, homeSize 128m and 16m of shared "
            "memory are more than half of it; raise memory, or lower tmpSize or homeSize",
            id="memory too small for its files",
        ),
        pytest.param(
            config_text(agent=AGENT.replace('"i"', '"i", profile: "open", homeSize: "1g"')),
            "agents.a.sandbox.homeSize: has no effect in the profile open",
            id="home of open",
        ),
        pytest.param(
            config_text(agent=AGENT.replace('"i"', '"i", network: "bridge"')),
            'agents.a.sandbox.network: "bridge" is only for the profile open; write profile: "open" or',
            id="bridge in sealed",
        ),
        pytest.param(
            config_text(
                agent=AGENT.replace('"i"', '"i", profile: "open", network: "bridge", egress: {allow: []}')
            ),
            'agents.a.sandbox.network: "bridge" makes egress.allow meaningless',
            id="bridge beside egress",
        ),
        pytest.param(
            config_text(agent=AGENT.replace('"i"', '"i", root: true')),
            'agents.a.sandbox.root: is only for the profile open; write profile: "open" or remove it',
            id="root in sealed",
        ),
        pytest.param(
            config_text(agent=AGENT.replace('"i"', '"i", egress: { allow: ["https://a.example"] }')),
            "agents.a.sandbox.egress.allow[0]: ",
            id="egress rule",
        ),
        pytest.param(
            config_text(agent=AGENT.replace('"i"', '"i", egress: { allow: ["*", "169.254.169.254"] }')),
            "agents.a.sandbox.egress.allow[1]: '169.254.169.254' is not an address on the internet; "
            "it is refused anyway",
            id="egress to the metadata address",
        ),
        pytest.param(
            config_text(agent=AGENT.replace('"i"', '"i", egress: { allow: [], transferSize: "1k" }')),
            "agents.a.sandbox.egress.transferSize: 1k is too little for a connection; 64k or more",
            id="egress that carries nothing",
        ),
        pytest.param(
            config_text(agent=AGENT.replace('"i"', '"i", egress: { allow: [], idleS: 0 }')),
            "agents.a.sandbox.egress.idleS: ",
            id="egress without time",
        ),
        pytest.param(
            config_text(agent=AGENT.replace('"i"', '"--privileged"')),
            "agents.a.sandbox.image: has the",
            id="image",
        ),
        pytest.param(
            config_text(agent=AGENT.replace('"i"', '"i", memory: "1 GB"')),
            "agents.a.sandbox.memory: has the wrong form; allowed: a whole number of bytes",
            id="size",
        ),
        pytest.param(
            config_text(agent=AGENT.replace('"i"', '"i", cpus: Infinity')),
            "agents.a.sandbox.cpus: must be a finite number",
            id="infinity",
        ),
        pytest.param(
            config_text(more="plugins: { x: { path: 'x' } }"), "plugins.x.path: ", id="plugin-directory"
        ),
        pytest.param(
            config_text(more="plugins: { x: { path: 'bundled:../x' } }"), "plugins.x.path: ", id="bundled"
        ),
    ],
)
def test_a_wrong_file_gets_a_line_that_names_the_place(home: Home, text: str, line: str) -> None:
    lines = problems_of(home, text)
    assert any(found.startswith(line) for found in lines), lines


def test_a_missing_file_names_the_command_that_makes_one(home: Home) -> None:
    with pytest.raises(ConfigError, match="is missing; run `beige setup`"):
        load(home)


def test_a_tool_of_a_plugin_that_cannot_be_read_is_not_called_unknown(home: Home) -> None:
    text = SEED.replace("./plugins/notes", "./plugins/gone")
    assert [line.split(":")[0] for line in problems_of(home, text, ANTHROPIC_API_KEY="k")] == [
        "plugins.notes.path"
    ]


def test_a_key_is_never_part_of_a_message(home: Home) -> None:
    lines = problems_of(home, config_text("openai: { apiKey: ['sk-secret'], concurrency: 'sk-secret' }"))
    assert "sk-secret" not in "\n".join(lines)


def test_the_profile_open_has_larger_limits_unless_others_are_written(home: Home) -> None:
    home.config.write_text(config_text(agent=AGENT.replace('"i"', '"i", profile: "open", pids: 64')))
    sandbox = load(home).agents["a"].sandbox
    assert (sandbox.memory, sandbox.tmp_size, sandbox.pids, sandbox.deadline_s) == ("2g", "512m", 64, 1800)


def test_the_upstream_proxys_password_is_resolved_in_egress_alone(home: Home) -> None:
    home.config.write_text(config_text(more='egress: { upstreamProxy: "http://u:${PW}@p:1" }'))
    assert load(home).egress.upstream_proxy == "http://u:${PW}@p:1"
    assert load(home, frozenset({"egress"}), {"PW": "x"}).egress.upstream_proxy == "http://u:x@p:1"
