"""The bundled kv plugin: what it stores, whose it is, what it refuses; several processes at once."""

from __future__ import annotations

import importlib.util
import logging
import multiprocessing
from pathlib import Path
from types import ModuleType

import pytest

from beige.paths import bundled_plugins_dir
from beige.plugins import PluginContext, ToolError, ToolInvocation, UsageError


def module() -> ModuleType:
    file = bundled_plugins_dir() / "kv" / "plugin.py"
    spec = importlib.util.spec_from_file_location("kv_under_test", file)
    assert spec and spec.loader
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


KV = module()


class Shell:
    """`kv ARGS...` as one agent or another."""

    def __init__(self, directory: Path) -> None:
        self._plugin = KV.create_plugin({}, PluginContext("kv", directory, logging.getLogger("kv")))

    def __call__(self, *args: str, agent: str = "a") -> str:
        result = self._plugin.call(ToolInvocation("kv", args, agent))
        assert (result.error, result.exit_code) == ("", 0)
        return str(result.output)


@pytest.fixture
def kv(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def test_set_get_list_del(kv: Shell) -> None:
    assert kv("set", "trip:paris", "March 15") == "OK"
    assert kv("set", "trip:rome", "April") == "OK"
    assert kv("set", "other", "") == "OK"
    assert kv("get", "trip:paris") == "March 15"
    assert kv("get", "other") == ""
    assert kv("list") == "other\ntrip:paris\ntrip:rome"
    assert kv("list", "trip:") == "trip:paris\ntrip:rome"
    assert kv("del", "trip:paris", "trip:rome", "nothing") == "2"
    assert kv("list", "trip:") == ""


def test_a_value_is_replaced(kv: Shell) -> None:
    kv("set", "k", "one")
    kv("set", "k", "two")
    assert kv("get", "k") == "two"


@pytest.mark.parametrize(
    "key", ["ключ", "a b", "100%", "a_b*?[x]", "🦊", "'; DROP TABLE entries; --", "x" * 512]
)
@pytest.mark.parametrize("value", ["", "line\nline\n", "\0", "ü🦊", "x" * KV.MAX_VALUE], ids=range(5))
def test_any_text_survives(kv: Shell, key: str, value: str) -> None:
    kv("set", key, value)
    assert kv("get", key) == value
    assert kv("list", key) == key
    assert kv("del", key) == "1"


@pytest.mark.parametrize(
    ("prefix", "found"), [("%", "%a"), ("_", "_a"), ("*", ""), ("a", "aa"), ("aa", "aa")]
)
def test_a_prefix_is_no_pattern(kv: Shell, prefix: str, found: str) -> None:
    for key in ("%a", "_a", "aa", "ba"):
        kv("set", key, "x")
    assert kv("list", prefix) == found


def test_no_agent_sees_anothers_keys(kv: Shell) -> None:
    kv("set", "k", "mine", agent="a")
    assert kv("list", agent="b") == ""
    assert kv("del", "k", agent="b") == "0"
    with pytest.raises(ToolError, match="no such key"):
        kv("get", "k", agent="b")
    kv("set", "k", "yours", agent="b")
    assert kv("get", "k", agent="a") == "mine"


def test_what_was_set_is_there_after_a_restart(tmp_path: Path) -> None:
    Shell(tmp_path)("set", "k", "v")
    assert Shell(tmp_path)("get", "k") == "v"


def test_a_missing_key_has_exit_code_1(kv: Shell) -> None:
    with pytest.raises(ToolError) as caught:
        kv("get", "k")
    assert (caught.value.message, caught.value.exit_code) == ("kv: no such key: 'k'", 1)


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        pytest.param(("frob",), "unknown command 'frob'", id="unknown"),
        pytest.param(("get",), "get takes one KEY", id="get"),
        pytest.param(("get", "a", "b"), "get takes one KEY", id="get-two"),
        pytest.param(("set", "a"), "set takes a KEY and a VALUE", id="set"),
        pytest.param(("set", "a", "b", "c"), "quote a value with spaces", id="set-unquoted"),
        pytest.param(("del",), "del takes one to 500 KEYs", id="del"),
        pytest.param(("list", "a", "b"), "list takes at most one PREFIX", id="list"),
        pytest.param(("set", "", "x"), "a key has 1 to 512 bytes, this one 0", id="empty-key"),
        pytest.param(("set", "é" * 257, "x"), "a key has 1 to 512 bytes, this one 514", id="long-key"),
        pytest.param(("get", "a\nb"), "must not hold newlines", id="newline"),
        pytest.param(("set", "k", "x" * (KV.MAX_VALUE + 1)), "the limit is 262144", id="long-value"),
    ],
)
def test_wrong_arguments_have_exit_code_2(kv: Shell, args: tuple[str, ...], problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        kv(*args)
    assert problem in caught.value.message
    assert caught.value.exit_code == 2


def test_usage_is_printed(kv: Shell, tmp_path: Path) -> None:
    assert "usage: kv set KEY VALUE" in kv("--help")
    plugin = KV.create_plugin({}, PluginContext("kv", tmp_path, logging.getLogger("kv")))
    bare = plugin.call(ToolInvocation("kv", (), "a"))
    assert bare.exit_code == 2
    assert "usage:" in bare.error


def test_an_agents_store_is_bounded_in_bytes_and_only_its_own(kv: Shell) -> None:
    value = "x" * KV.MAX_VALUE
    with pytest.raises(ToolError, match="kv: full"):
        for number in range(100):
            kv("set", f"k{number}", value)
    count = len(kv("list").split("\n"))
    assert count == KV.MAX_AGENT // (KV.MAX_VALUE + 3)
    kv("set", "k0", "y" * KV.MAX_VALUE)  # replacing needs no more room
    kv("set", "k", value, agent="b")
    assert kv("del", "k0") == "1"
    kv("set", "again", value)


def test_an_agents_store_is_bounded_in_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KV, "MAX_KEYS", 3)
    kv = Shell(tmp_path)
    for key in "abc":
        kv("set", key, "")
    with pytest.raises(ToolError, match="kv: full"):
        kv("set", "d", "")
    kv("set", "a", "changed")
    assert kv("list") == "a\nb\nc"


def _write(directory: str, number: int, count: int) -> None:
    kv = Shell(Path(directory))
    for turn in range(count):
        kv("set", f"{number}-{turn}", str(turn))
        kv("set", "shared", f"{number}-{turn}")


def test_several_processes_may_start_and_write_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write, args=(str(tmp_path), n, 50)) for n in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0, 0, 0]
    assert len(Shell(tmp_path)("list").split("\n")) == 201


def test_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no configuration"):
        KV.create_plugin({"a": 1}, PluginContext("kv", tmp_path, logging.getLogger("kv")))
