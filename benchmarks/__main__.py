"""`python -m benchmarks`: run all, print the table, write `benchmarks/out/bench.json`. Missed targets are
shown, not an error; a measurement that can't be made is."""

from __future__ import annotations

import sys

from beige.testing import House, short_home
from benchmarks import bus, containers, gateway, llm, rig, sandbox

CONFIG = """{
  llm: { providers: { script: { api: "scripted", script: "script.json5" } } },
  plugins: { kv: { path: "bundled:kv" } },
  agents: { travel: { model: { provider: "script", model: "m" }, tools: ["kv"],
                      sandbox: { image: "beige-sandbox:latest" } } },
}
"""
_AGENT = (
    '{ model: { provider: "script", model: "m" }, tools: [], sandbox: { image: "beige-sandbox:latest" } }'
)
FIFTY = f"""{{
  llm: {{ providers: {{ script: {{ api: "scripted", script: "script.json5" }} }} }},
  agents: {{ {", ".join(f"{name}: {_AGENT}" for name in containers.AGENTS)} }},
}}
"""
GOVERNORS = ("broker", "policy", "audit")
EXECUTORS = ("sandbox", "tools", "bridge")
MEASURES = (
    (bus, GOVERNORS, CONFIG),
    (sandbox, GOVERNORS + EXECUTORS, CONFIG),
    (containers, (*GOVERNORS, "sandbox"), FIFTY),
    (llm, (), CONFIG),
    (gateway, (), CONFIG),
)
"""What measures, what must run in its house before, and with which configuration."""


def main() -> int:
    rows: list[rig.Row | rig.Fact] = []
    for measure, processes, config in MEASURES:
        print(f"measuring: {measure.__name__.rpartition('.')[2]}", file=sys.stderr)
        with short_home() as home:
            home.config.write_text(config)
            (home.root / "script.json5").write_text('[{ say: "hello" }]\n')
            with House(home) as house:
                for name in processes:
                    house.start(name)
                rows += measure.run(house)
    print(rig.table(rows))
    rig.write(rows)
    print(f"written: {rig.OUT.relative_to(rig.ROOT)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
