"""Where the token comes from and may go; what is written to files."""

import os
import stat

import pytest

from beige.cli.tui import read_token
from beige.errors import BeigeError, ConfigError, Denied, Failed, Malformed, NotFound
from beige.tui import export
from beige.tui.api import Api, Away, check_url


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:7433",
        "http://[::1]:1",
        "http://localhost:7433",
        "https://far.example",
        "unix:///run/x",
    ],
)
def test_addresses_that_keep_the_token_secret(url):
    assert check_url(url) == url


@pytest.mark.parametrize(
    "url", ["http://far.example", "http://10.0.0.1:7433", "http://127.0.0.1.far.example"]
)
def test_the_token_is_not_shown_to_a_network(url):
    """Whoever listens on the way would have it."""
    with pytest.raises(Denied, match="https://"):
        check_url(url)


@pytest.mark.parametrize(
    "url",
    ["", "127.0.0.1:7433", "ftp://x", "http://", "unix://", "http://u:p@127.0.0.1", "http://localhost?a=b"],
)
def test_what_is_no_address(url):
    with pytest.raises(Malformed):
        check_url(url)


def test_a_proxy_of_the_environment_does_not_get_the_token():
    """The variables are read when a client is made; nothing listens at the address asked for."""
    import asyncio
    import subprocess
    import sys

    script = (
        "import asyncio\nfrom beige.tui.api import Api, Away\n"
        "async def main():\n"
        "    api = Api('http://127.0.0.1:9', 'secret')\n"
        "    try:\n        await api.health()\n"
        "    except Away as error:\n        print('sent' if error.sent else 'not sent')\n"
        "    await api.close()\n"
        "asyncio.run(main())\n"
    )

    async def main():
        got = asyncio.Event()

        async def proxy(reader, writer):
            got.set()
            writer.close()

        async with await asyncio.start_server(proxy, "127.0.0.1", 0) as server:
            address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            environ = os.environ | {"http_proxy": address, "all_proxy": address, "no_proxy": ""}
            done = await asyncio.to_thread(
                subprocess.run, [sys.executable, "-c", script], env=environ, capture_output=True, text=True,
                timeout=60,
            )  # fmt: skip
        return done.stdout, got.is_set()

    assert asyncio.run(main()) == ("not sent\n", False)


def test_a_connection_that_was_refused_says_that_nothing_was_sent():
    import asyncio

    async def main():
        api = Api("unix:///nonexistent/socket", "secret")
        try:
            with pytest.raises(Away) as caught:
                await api.health()
        finally:
            await api.close()
        return caught.value.sent

    assert asyncio.run(main()) is False


def test_a_token_is_one_line(tmp_path):
    path = tmp_path / "token"
    path.write_text("beige_abc\n")
    assert read_token(path) == "beige_abc"


@pytest.mark.parametrize("content", [b"", b"a b", b"one\ntwo", b"\xff\xfe", "tök".encode()])
def test_a_wrong_token_file_is_named_and_its_content_is_not(tmp_path, content):
    path = tmp_path / "token"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="token") as caught:
        read_token(path)
    assert "one" not in str(caught.value).replace("one line", "")


def test_a_missing_token_file_says_how_to_get_one(tmp_path):
    with pytest.raises(NotFound, match="beige token create"):
        read_token(tmp_path / "none")


ENTRIES = [
    {"type": "prompt", "text": "do \x1b[2J it"},
    {"type": "assistant", "model": "p/m", "content": [
        {"type": "text", "text": "# Fine"},
        {"type": "tool_call", "id": "1", "name": "exec", "args": {"command": "cat x"}}]},
    {"type": "tool_start", "tool_id": "1"},
    {"type": "tool_result", "tool_id": "1", "tool": "exec", "exit_code": 0, "duration_ms": 1500,
     "content": [{"type": "text", "text": "````\n# not a heading"}]},
    {"type": "assistant", "model": "p/m", "content": [{"type": "text", "text": "Done."}]},
]  # fmt: skip


def test_an_export_reads_well_and_output_cannot_leave_its_fence():
    assert export.markdown("a", "s", ENTRIES) == (
        "# a, session s\n\n## Prompt\n\n```text\ndo \\x1b[2J it\n```\n\n> # Fine\n\n### Tool call: exec\n\n"
        "```text\ncommand: cat x\n```\n\nResult: exit code 0, 1.5 s\n\n"
        "`````text\n````\n# not a heading\n`````\n\n> Done.\n"
    )


def test_an_export_is_private_and_replaces_nothing(tmp_path):
    target = tmp_path / "x.md"
    assert export.write(str(target), "text") == str(target)
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    with pytest.raises(Failed, match="exists"):
        export.write(str(target), "other")
    (tmp_path / "link.md").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Failed):
        export.write(str(tmp_path / "link.md"), "other")
    assert target.read_text() == "text" and not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("path", ["/nonexistent/x.md", "/proc/x", "a\0b"])
def test_a_file_that_cannot_be_written_is_an_error_in_words(path):
    with pytest.raises(BeigeError):
        export.write(path, "x")
