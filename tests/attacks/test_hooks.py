"""Threat: somebody has a hook run, or shows a plugin prompts that its operator didn't mean it to see; and a
guard is got around by making it fail.

The llm workers are in hostile hands (the user's real key, a test's words); broker, policy, audit, tools and
the plugins are the real processes.
"""

import asyncio

import pytest

from beige.bus import Bus
from beige.errors import Denied, Failed
from beige.messages.tools import HookCall, HookResult, ToolCall
from tests.processes.hook_stage import agent, hook, new_hook_stage
from tests.processes.lease_worker import with_workers

AGENTS = {
    "travel": agent(hook("ears", "prePrompt")),
    "other": agent(hook("tail", "prePrompt", "postResponse")),
    "idle": agent(),
    "lax": agent(hook("ears", "prePrompt", onFailure="continue")),
}


@pytest.fixture(scope="module")
def stage():
    with new_hook_stage(AGENTS) as stage:
        stage.start("broker", "policy", "audit", "tools")
        yield stage


def denials(stage, agent):
    lines = [line for line in stage.audit() if line["agent"] == agent and line["type"] == "hook"]
    return [line["error"] for line in lines if line["decision"] == "denied"]


def texts(stage, plugin):
    return [line["text"] for name in AGENTS for line in stage.heard(name, plugin)]


async def refused(call):
    with pytest.raises(Denied) as caught:
        await call
    return str(caught.value)


def test_a_worker_runs_the_hooks_that_its_prompts_agent_names_control(stage):
    async def play(p):
        async def do(request):
            heard = await request.call("tools.hook", HookCall("ears", "prePrompt", "swap mine"))
            assert heard == HookResult("replaced", "mine by ears")

        await p.ask(do, "travel")

    with_workers(stage.house, play)
    assert "swap mine" in texts(stage, "ears")


@pytest.mark.parametrize(
    ("name", "plugin", "hook_name"),
    [
        pytest.param("travel", "tail", "prePrompt", id="another agent's plugin"),
        pytest.param("travel", "ears", "postResponse", id="a hook that it isn't listed for"),
        pytest.param("idle", "ears", "prePrompt", id="an agent without hooks"),
        pytest.param("travel", "nobody", "prePrompt", id="no plugin at all"),
    ],
)
def test_a_plugin_that_the_agent_does_not_name_never_sees_its_prompts(stage, name, plugin, hook_name):
    denial = f"Permission denied: plugin '{plugin}' may not listen to {hook_name} of agent '{name}'"
    secret = f"{name}'s own words for {plugin} {hook_name}"

    async def play(p):
        async def do(request):
            assert await refused(request.call("tools.hook", HookCall(plugin, hook_name, secret))) == denial

        await p.ask(do, name)

    with_workers(stage.house, play)
    assert secret not in texts(stage, "ears") + texts(stage, "tail")
    assert denial in denials(stage, name)
    assert secret not in stage.home.audit_log.read_text()


def test_a_worker_runs_no_hook_for_a_prompt_that_it_does_not_serve(stage):
    call = HookCall("tail", "prePrompt", "stolen")

    async def play(p):
        kept = []

        async def do(request):
            kept.append(request)
            said = await refused(request.call("tools.hook", call, agent="other"))
            assert "inherited from the parent call" in said

        await p.ask(do, "travel")
        assert "not being served" in await refused(kept[0].call("tools.hook", call))
        bus = p.workers[0].bus
        assert "needs an agent" in await refused(bus.call("tools.hook", call))
        assert "may not name an agent" in await refused(bus.call("tools.hook", call, agent="other"))

    with_workers(stage.house, play)
    assert "stolen" not in texts(stage, "tail")


@pytest.mark.parametrize("user", ["bridge/0", "cli/0", "gateway/0", "sandbox/0", "tools/1", "tap/0"])
def test_no_other_role_runs_a_hook(stage, user):
    """Nor can an agent: all that comes out of a container is the bridge's."""

    async def main():
        async with Bus(stage.home, user) as bus:
            named = {"agent": "travel"} if user in ("bridge/0", "cli/0", "gateway/0") else {}
            said = await refused(bus.call("tools.hook", HookCall("ears", "prePrompt", f"by {user}"), **named))
            assert "may not call 'tools.hook'" in said

    asyncio.run(main())
    assert f"by {user}" not in texts(stage, "ears")


def test_a_hook_is_no_tool(stage):
    async def main():
        async with Bus(stage.home, "bridge/0") as bus:
            for tool in ("ears", "prePrompt", "ears-prePrompt"):
                said = await refused(bus.call("tools.call", ToolCall(tool, ["x"]), agent="travel"))
                assert said == f"Permission denied: tool '{tool}' not allowed for agent 'travel'"

    asyncio.run(main())


def test_a_guard_that_is_gone_opens_no_door():
    """Without the tools process: who refuses on failure refuses; who was told to go on does (control)."""
    with new_hook_stage(AGENTS) as stage:
        stage.start("broker", "policy", "audit", "sandbox", "llm")
        with pytest.raises(Failed, match="could not check the prompt: no tools process is running"):
            stage.prompt("travel", "unguarded", "gone")
        assert stage.simulator.requests == []
        stage.prompt("lax", "unguarded", "gone")
        assert "unguarded" in stage.said_to_models()
