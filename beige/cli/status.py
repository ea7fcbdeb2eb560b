"""`beige status`: supervisord's word and the bus's word about each process, side by side."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from beige.paths import Home


def status(
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Show every process: what supervisord says (state, pid), what the bus says (is it connected, what is
    it doing). Exit code 0 when everything serves, 1 when not.

    \b
    Examples:
      beige status
      beige status --json | jq '.services[] | select(.ok | not)'
    """
    from beige.cli.calls import run
    from beige.cli.terminal import emit

    home = Home.find()
    report = run(collect(home))
    if json_output:
        emit(report)
    else:
        print(render(report))
    raise typer.Exit(0 if report["ok"] else 1)


async def collect(home: Home) -> dict[str, Any]:
    """Everything `status --json` prints."""
    from beige.cli.gateway_health import problem
    from beige.errors import Unavailable
    from beige.supervisor.control import Control

    try:
        states = Control(home, timeout_s=5.0).processes()
    except Unavailable:
        return {"home": str(home.root), "ok": False, "up": False, "services": [], "bus": None}
    stats = await _stats(home)
    peers = {peer.user: peer for peer in stats.peers} if stats else {}
    services = [_service(state, stats is not None, peers) for state in states]
    for service in services:
        if service["name"] == "gateway" and service["ok"] and (said := problem(home)):
            service["description"] = said  # everything else runs, and it serves at its Unix socket
    return {
        "home": str(home.root),
        "ok": bool(stats) and all(service["ok"] for service in services),
        "up": True,
        "scale": {name: sum(s.program == name for s in states) for name in ("llm", "tools")},
        "services": services,
        "bus": _bus(stats) if stats else None,
    }


async def _stats(home: Home) -> Any:
    from beige.cli.calls import connected
    from beige.errors import BeigeError
    from beige.messages.base import Empty

    try:
        async with connected(home) as bus:
            return await bus.call("bus.stats", Empty(), ttl_s=5.0)
    except BeigeError:
        return None


def _service(state: Any, bus_up: bool, peers: dict[str, Any]) -> dict[str, Any]:
    number = state.name.removeprefix(state.program).removeprefix("-") or "0"
    peer = peers.get(f"{state.program}/{number}")
    on_bus = bus_up if state.program == "broker" else peer is not None
    found: dict[str, Any] = {
        "name": state.name,
        "ok": on_bus and state.state in ("RUNNING", "STARTING"),
        "state": state.state,
        "pid": state.pid,
        "upS": state.up_s,
        "onBus": on_bus,
    }
    if not found["ok"] and state.description:
        found["description"] = state.description
    if peer is not None:
        found |= {"capacity": peer.capacity, "inFlight": peer.in_flight, "queued": peer.queued}
    return found


def _bus(stats: Any) -> dict[str, Any]:
    return {
        "epoch": stats.epoch,
        "upS": round(stats.uptime_s, 1),
        "pending": stats.pending,
        "counters": stats.counters,
        "queues": stats.queues,
    }


def render(report: dict[str, Any]) -> str:
    from beige.cli.terminal import duration, table

    if not report["up"]:
        return f"down ({report['home']}): start it with `beige up`"
    rows = [["SERVICE", "STATE", "PID", "UP", "BUS", "BUSY"]]
    for service in report["services"]:
        busy = f"{service['inFlight']}/{service['capacity']}" if service.get("capacity") else ""
        rows.append([
            service["name"], service["state"].lower(), str(service["pid"] or ""), duration(service["upS"]),
            "connected" if service["onBus"] else "-", busy,
        ])  # fmt: skip
    notes = [f"{s['name']}: {s['description']}" for s in report["services"] if "description" in s]
    scale = ", ".join(f"{name} {count}" for name, count in report["scale"].items())
    head = f"{'up' if report['ok'] else 'NOT SERVING'} ({report['home']}), scale: {scale}"
    return "\n".join([head, table(rows), *notes])
