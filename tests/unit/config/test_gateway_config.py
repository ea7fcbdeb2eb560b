"""An HTTP API that runs commands is not opened to a network by one careless line."""

import json

import pytest

from beige.config import check_everything
from beige.errors import ConfigError
from services.gateway.server import Servers

AGENT = {"model": {"provider": "s", "model": "m"}, "tools": [], "sandbox": {"image": "x"}}


def write(home, **gateway):
    (home.root / "s.json5").write_text("[]")
    config = {
        "llm": {"providers": {"s": {"api": "scripted", "script": "s.json5"}}},
        "agents": {"travel": AGENT},
        "gateway": gateway,
    }
    home.config.write_text(json.dumps(config))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_this_machines_own_addresses_need_nothing_more(home, host):
    write(home, host=host)
    assert check_everything(home, {}).gateway.host == host


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "gateway.example.org", "127.0.0.1.nip.io"])
def test_any_other_address_needs_tls_or_a_word(home, host):
    write(home, host=host)
    with pytest.raises(ConfigError, match=r"gateway\.host: .* is reachable from other machines; set tls"):
        check_everything(home, {})
    write(home, host=host, insecureBind=True)
    assert check_everything(home, {}).gateway.insecure_bind, "control"


def test_the_process_refuses_it_too(home):
    """Whatever the check of the file saw: a variable, for one, is resolved later."""
    write(home, host="0.0.0.0", insecureBind=True)
    config = check_everything(home, {}).gateway
    with pytest.raises(ConfigError, match="reachable from other machines"):
        Servers(home, config.model_copy(update={"insecure_bind": False}), None)
    Servers(home, config, None)


def test_a_variable_does_not_get_around_the_check(home):
    write(home, host="${BIND}")
    with pytest.raises(ConfigError, match="reachable from other machines"):
        check_everything(home, {"BIND": "0.0.0.0"})
    assert check_everything(home, {"BIND": "127.0.0.1"}).gateway.host == "127.0.0.1", "control"


def test_tls_needs_its_files(home):
    write(home, host="0.0.0.0", tls={"cert": "cert.pem", "key": "key.pem"})
    with pytest.raises(ConfigError, match=r"gateway\.tls\.cert: 'cert.pem' is not a file"):
        check_everything(home, {})
    for name in ("cert.pem", "key.pem"):
        (home.root / name).write_text("")
    assert check_everything(home, {}).gateway.tls


@pytest.mark.parametrize("origin", ["*", "app.example.org", "https://app.example.org/path", "null"])
def test_cors_takes_origins_only(home, origin):
    write(home, cors=[origin])
    with pytest.raises(ConfigError, match=r"gateway\.cors"):
        check_everything(home, {})
    write(home, cors=["https://app.example.org:8443"])
    assert check_everything(home, {}).gateway.cors, "control"


def test_it_can_be_switched_off(home):
    write(home, enabled=False)
    assert check_everything(home, {}).switched_off == {"gateway", "channels"}
    write(home)
    assert check_everything(home, {}).switched_off == {"channels"}
