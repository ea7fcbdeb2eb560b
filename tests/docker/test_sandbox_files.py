"""read, write and patch on a real container, through the whole corridor."""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path

import pytest

from beige.errors import BeigeError, Denied, Failed, Malformed, NotFound, TooLarge
from beige.messages.sandbox import ExecRequest, PatchRequest, ReadRequest, WriteRequest

pytestmark = pytest.mark.docker

HOSTILE = [
    "plain.txt",
    "with space.txt",
    "a'b.txt",
    'a"b.txt',
    "new\nline.txt",
    "ends with newline\n",
    "$(touch pwned).txt",
    "`touch pwned`.txt",
    "a;touch pwned;.txt",
    "a|b&c>d<e.txt",
    "-rf",
    "--help",
    "-n",
    "*.txt",
    "[a]?.txt",
    "~root",
    "back\\slash\\n.txt",
    "größe-日本-\U0001f600.txt",
    "\u202egnp.exe",
    "\x01\x1b[31m.txt",
    "%s%n$HOME.txt",
    "{a,b}.txt",
    "deep/er/-/ /x.txt",
    "x" * 255,
    "#comment",
    "!history",
]


async def write(bus, path, content, name="travel", **fields):
    return await bus.call("sandbox.write", WriteRequest(path, content, **fields), agent=name)


async def read(bus, path, name="travel", **fields):
    return await bus.call("sandbox.read", ReadRequest(path, **fields), agent=name)


async def patch(bus, path, old, new, **fields):
    return await bus.call("sandbox.patch", PatchRequest(path, old, new, **fields), agent="travel")


async def upload(bus, path, data, size=None, sha256=None, name="travel"):
    body = WriteRequest(
        path,
        size=len(data) if size is None else size,
        sha256=hashlib.sha256(data).hexdigest() if sha256 is None else sha256,
    )
    async with bus.open("sandbox.write", body, agent=name, ttl_s=100) as stream:
        for start in range(0, len(data), 65536):
            await stream.send(data[start : start + 65536])
        await stream.end()
        return await stream.result()


@pytest.mark.parametrize("path", HOSTILE)
def test_hostile_paths_work_and_inject_nothing(path, house, tools):
    async def test(bus):
        first = await write(bus, f"paths/{path}", b"one\ntwo\n")
        assert (first.size, first.created) == (8, True)
        assert not (await write(bus, f"paths/{path}", b"one\n2\n")).created
        assert (await patch(bus, f"paths/{path}", "2", "deux")).first_line == 2
        assert (await read(bus, f"paths/{path}")).content == b"one\ndeux\n"
        argv = ["sha256sum", "--", f"/workspace/paths/{path}"]
        seen = await bus.call("sandbox.exec", ExecRequest(argv=argv), agent="travel")
        assert seen.stdout.lstrip(b"\\").startswith(hashlib.sha256(b"one\ndeux\n").hexdigest().encode())
        assert await tools.out(bus, "find / -name 'pwned*' 2>/dev/null; ls -A | wc -l") == "1\n"
        await bus.call("sandbox.exec", ExecRequest("rm -rf paths"), agent="travel")

    house.operate(test)


def test_hostile_paths_directly_in_the_workspace(house):
    """Where a name would be the whole argument."""

    async def test(bus):
        for path in ("-rf", "--help", "-", "--", "~", "$HOME", "a b"):
            await write(bus, path, b"x")
            assert (await read(bus, path)).content == b"x"
            await bus.call("sandbox.exec", ExecRequest(argv=["rm", "--", path]), agent="travel")

    house.operate(test)


def test_every_byte_survives(house, tools):
    data = bytes(range(256)) * 100 + b"\r\n\0no newline at the end"

    async def test(bus):
        await write(bus, "bytes.bin", data)
        assert await tools.out(bus, "sha256sum < bytes.bin") == hashlib.sha256(data).hexdigest() + "  -\n"
        result = await read(bus, "bytes.bin")
        assert (result.kind, result.content, result.size) == ("binary", b"", len(data))
        assert "binary" in result.notice
        await patch(bus, "bytes.bin", "no newline", "still no newline")
        changed = data.replace(b"no newline", b"still no newline")
        assert await tools.out(bus, "sha256sum < bytes.bin") == hashlib.sha256(changed).hexdigest() + "  -\n"

    house.operate(test)


def test_crlf_and_the_missing_last_newline_survive_a_patch(house, tools):
    async def test(bus):
        await write(bus, "dos.txt", b"a\r\nb\r\nc")
        await patch(bus, "dos.txt", "b", "B")
        assert (await read(bus, "dos.txt")).content == b"a\r\nB\r\nc"

    house.operate(test)


ERRORS = [
    pytest.param("read", ReadRequest("missing.txt"), NotFound, "no such file", id="read, missing"),
    pytest.param("read", ReadRequest("/workspace"), Failed, "is a directory", id="read, directory"),
    pytest.param("read", ReadRequest("/dev/zero"), Failed, "not a regular file", id="read, device"),
    pytest.param("read", ReadRequest("fifo"), Failed, "not a regular file", id="read, pipe"),
    pytest.param("read", ReadRequest("dangling"), NotFound, "no such file", id="read, dangling link"),
    pytest.param("read", ReadRequest("secret"), Failed, "permission denied", id="read, forbidden"),
    pytest.param("read", ReadRequest("a\0b"), Malformed, "NUL", id="read, NUL"),
    pytest.param("read", ReadRequest("x" * 300), NotFound, "no such file", id="read, name too long"),
    pytest.param("write", WriteRequest("/workspace", b"x"), Failed, "is a directory", id="write, directory"),
    pytest.param("write", WriteRequest("d/", b"x"), Malformed, "directory", id="write, slash at the end"),
    pytest.param("write", WriteRequest("/usr/bin/x", b"x"), Failed, "Read-only", id="write, read-only root"),
    pytest.param("write", WriteRequest("/tools/bin/kv", b"x"), Failed, "denied", id="write, launcher"),
    pytest.param("write", WriteRequest("locked", b"x"), Failed, "permission denied", id="write, locked"),
    pytest.param("write", WriteRequest("fifo", b"x"), Failed, "not a regular file", id="write, pipe"),
    pytest.param("write", WriteRequest("h", b"x", sha256="0" * 64), Malformed, "sha256", id="write, hash"),
    pytest.param("write", WriteRequest("h", b"x", size=2), Malformed, "size", id="write, wrong size"),
    pytest.param("write", WriteRequest("h", size=1), Malformed, "sha256", id="write, stream without hash"),
    pytest.param("patch", PatchRequest("missing.txt", "a", "b"), NotFound, "no such", id="patch, missing"),
    pytest.param("patch", PatchRequest("twice", "x", "y"), Failed, r"2 times \(lines 1, 3\)", id="twice"),
    pytest.param("patch", PatchRequest("twice", "z", "y"), Failed, "not in the file", id="patch, absent"),
    pytest.param("patch", PatchRequest("huge", "x", "y"), TooLarge, "8388608", id="patch, huge file"),
]


@pytest.fixture(scope="module")
def furnished(house, tools):
    async def furnish(bus):
        await tools.out(
            bus,
            "mkfifo fifo; ln -s /nowhere dangling; echo x > secret; chmod 0 secret; echo x > locked; "
            "chmod 400 locked; printf 'x\\n\\nx\\n' > twice; truncate -s 9M huge",
        )

    house.operate(furnish)
    return house


@pytest.mark.parametrize(("method", "body", "error", "words"), ERRORS)
def test_errors_say_what_is_wrong(method, body, error, words, furnished):
    async def test(bus):
        with pytest.raises(error, match=words) as caught:
            await bus.call(f"sandbox.{method}", body, agent="travel")
        assert caught.value.executed == "no" or error is Malformed
        assert str(furnished.home.root) not in str(caught.value)

    furnished.operate(test)


def test_a_symlink_to_a_file_of_the_host_shows_the_containers(house, tools):
    """The service must never follow the agent's links itself."""
    marker = house.home.root / "host-secret"
    marker.write_text("secret of the host")

    async def test(bus):
        await tools.out(bus, f"ln -sfn {marker} link; ln -sfn /etc/passwd passwd; ln -sfn / root")
        with pytest.raises(NotFound):
            await read(bus, "link")
        assert b"agent:x:64000" in (await read(bus, "passwd")).content
        with pytest.raises(BeigeError):
            await read(bus, f"root{marker}")
        with pytest.raises(BeigeError):
            await write(bus, "link", b"overwritten")
        await tools.out(bus, "rm link passwd root")

    house.operate(test)
    assert marker.read_text() == "secret of the host"


def test_write_follows_a_link_and_keeps_the_mode(house, tools):
    async def test(bus):
        await tools.out(bus, "printf old > script; chmod 750 script; ln -s script 'a link\n'")
        assert not (await write(bus, "a link\n", b"new")).created
        seen = await tools.out(bus, "cat script; stat -c ' %a' script; readlink 'a link\n'")
        assert seen == "new 750\nscript\n"
        await write(bus, "fresh", b"")
        assert await tools.out(bus, "stat -c '%a %s' fresh") == "644 0\n"
        await tools.out(bus, "rm -f script fresh a*")

    house.operate(test)


def test_long_text_is_cut_with_a_notice_and_read_on(house, tools):
    async def test(bus):
        await tools.out(bus, "seq 1 100000 > long.txt")
        first = await read(bus, "long.txt")
        assert (first.lines, first.first_line) == (2000, 1)
        assert first.content.endswith(b"\n2000\n")
        assert "offset=2001" in first.notice
        deep = await read(bus, "long.txt", offset=99_998, limit=2)
        assert (deep.content, deep.lines) == (b"99998\n99999\n", 2)
        assert "offset=100000" in deep.notice
        last = await read(bus, "long.txt", offset=100_000)
        assert (last.content, last.notice) == (b"100000\n", "")
        beyond = await read(bus, "long.txt", offset=100_001)
        assert (beyond.content, beyond.lines) == (b"", 0)
        assert "before line 100001" in beyond.notice
        short = await read(bus, "long.txt", offset=3, limit=1)
        assert short.content == b"3\n"

    house.operate(test)


def test_proc_files_are_read_though_they_say_they_are_empty(house):
    async def test(bus):
        assert b"processor" in (await read(bus, "/proc/cpuinfo")).content

    house.operate(test)


PNG = b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize("size", [100, 300_000, 2_000_000])
def test_images_are_returned_whole(size, house):
    data = PNG + os.urandom(size)

    async def test(bus):
        await upload(bus, "image.png", data)
        async with bus.open("sandbox.read", ReadRequest("image.png"), agent="travel") as stream:
            chunks = [item async for item in stream]
            result = await stream.result()
        assert (result.kind, result.media_type, result.size) == ("image", "image/png", len(data))
        assert result.streamed == (size > 512 * 1024)
        assert (b"".join(chunks) or result.content) == data

    house.operate(test)


def test_images_over_the_limit_are_refused(house, tools):
    async def test(bus):
        await tools.out(bus, "printf '\\x89PNG\\r\\n\\x1a\\n' > big.png; truncate -s 6M big.png")
        with pytest.raises(TooLarge, match="5242880"):
            await read(bus, "big.png")

    house.operate(test)


@pytest.mark.parametrize(
    ("change", "names"),
    [
        pytest.param({"sha256": "0" * 64}, "sha256", id="wrong hash"),
        pytest.param({"size": 99}, "size", id="more than announced"),
        pytest.param({"size": 101}, "size", id="less than announced"),
    ],
)
def test_streamed_content_that_is_not_what_was_announced_changes_nothing(change, names, house, tools):
    async def test(bus):
        await write(bus, "kept.txt", b"old")
        with pytest.raises(Malformed, match=names):
            await upload(bus, "kept.txt", bytes(100), **change)
        assert (await read(bus, "kept.txt")).content == b"old"
        async with asyncio.timeout(10):
            while await tools.out(bus, "find . -name '.beige-write-*'"):
                await asyncio.sleep(0.05)

    house.operate(test)


def test_a_cancelled_upload_changes_nothing(house, tools):
    async def test(bus):
        await write(bus, "kept.txt", b"old")
        body = WriteRequest("kept.txt", size=1000, sha256="0" * 64)
        async with bus.open("sandbox.write", body, agent="travel") as stream:
            await stream.send(bytes(500))
        async with asyncio.timeout(10):
            while await tools.out(bus, "find . -name '.beige-write-*'; pgrep -x cat || true"):
                await asyncio.sleep(0.05)
        assert (await read(bus, "kept.txt")).content == b"old"

    house.operate(test)


def test_fifty_megabytes_do_not_delay_another_agent(house, tools):
    """Written and read back, while the other agent's commands keep answering."""
    data = os.urandom(1 << 20) * 50
    digest = hashlib.sha256(data).hexdigest()

    async def test(bus):
        await tools.out(bus, "true")
        await tools.out(bus, "true", "other")
        upload_task = asyncio.create_task(upload(bus, "fifty.bin", data))
        answered = 0
        while not upload_task.done():
            await tools.out(bus, "true", "other")
            answered += 1
        assert (await upload_task).size == len(data)
        assert answered > 2, "the last one may have ended after the upload"
        assert await tools.out(bus, "sha256sum < fifty.bin") == f"{digest}  -\n"
        async with bus.open("sandbox.exec", ExecRequest("cat fifty.bin"), agent="travel", ttl_s=60) as stream:
            got = sum([len(item.data) async for item in stream])
            result = await stream.result()
        assert result.stdout_bytes == len(data)
        assert result.stdout_cut == len(data) - 256 * 1024 - 16 * 1024
        assert got == 256 * 1024
        assert len(result.stdout) < 300 * 1024

    house.operate(test)
    status = Path(f"/proc/{house.processes['sandbox'].pid}/status").read_text()
    peak_kb = int(status.split("VmHWM:")[1].split()[0])
    assert peak_kb < 200_000, "the service must not hold the file in memory"


def test_a_file_over_the_per_file_limit_fails_clean(house, tools):
    async def test(bus):
        result = await tools.bash(bus, "ulimit -f")
        assert result.stdout.strip() == str(2 * 1024 * 1024).encode()

    house.operate(test)


def test_an_agent_that_is_not_configured_has_no_sandbox(house):
    async def test(bus):
        with pytest.raises((NotFound, Denied)):
            await read(bus, "x", name="nobody")

    house.operate(test)
