"""What `beige doctor` says about what the walls leave open: egress, the profile open, root inside."""

from __future__ import annotations

from collections.abc import Iterator

from beige.cli.finding import Finding
from beige.config import Config
from beige.errors import BeigeError
from beige.paths import Home

OPEN_IMAGE = "beige-sandbox:open"


def openings(home: Home, config: Config) -> Iterator[Finding]:
    """One line for each agent that may do more than the plain sealed one; the image they need."""
    for name, agent in config.agents.items():
        box = agent.sandbox
        if box.egress is not None:
            yield _egress(name, box.egress.allow)
        if box.network == "bridge":
            text = f"{name}: on the engine's bridge, where nothing is decided or recorded"
            yield Finding(
                "network", "warning", text, "remove sandbox.network, and list its hosts in egress.allow"
            )
        if box.root:
            text = f"{name}: commands are root inside the container"
            yield Finding("root", "warning", text, "remove sandbox.root if it needs no apt; or use gVisor")
    if config.egress.upstream_proxy is not None:
        text = "connections go through a proxy that resolves the names: private ones are its to refuse"
        yield Finding("egress", "warning", text, "remove egress.upstreamProxy if this machine needs none")
    if any(agent.sandbox.image == OPEN_IMAGE for agent in config.agents.values()):
        yield _image(home)


def _egress(name: str, allow: tuple[str, ...]) -> Finding:
    if any(rule == "*" or rule.startswith("*:") for rule in allow):
        fix = f"`beige egress learn {name}` finds the list it needs"
        return Finding("egress", "warning", f"{name}: may connect to every host on the internet", fix)
    return Finding("egress", "ok", f"{name}: {', '.join(allow) or 'no rule yet'}")


def _image(home: Home) -> Finding:
    from beige.cli.image import status_of

    try:
        image = status_of(home, OPEN_IMAGE)
    except BeigeError as error:
        return Finding("image", "broken", str(error), "fix the Docker engine first")
    if not image.text:
        return Finding("image", "ok", f"{OPEN_IMAGE} is there and up to date")
    fix = "run `beige image build --profile open`"
    return Finding("image", "broken" if image.missing else "warning", image.text, fix)
