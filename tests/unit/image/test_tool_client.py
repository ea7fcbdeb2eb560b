"""The tool client: what it asks, what it prints, and what a hostile answer cannot make it do."""

import json
import socket
import struct
import subprocess
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

USAGE, UNREACHABLE, BAD_ANSWER = 2, 69, 70
MAX_ANSWER = 8 << 20


class Gateway:
    """Answers one connection with fixed bytes, and keeps the request."""

    def __init__(self, path):
        self.path = path
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen(8)
        self.listener.settimeout(20)

    def serve(self, answer, read_request=True):
        connection, _ = self.listener.accept()
        with connection:
            connection.settimeout(20)
            self.request = self._read_line(connection) if read_request else b""
            try:
                connection.sendall(answer)
            except (BrokenPipeError, ConnectionResetError):
                pass  # the client had enough

    @staticmethod
    def _read_line(connection):
        line = b""
        while not line.endswith(b"\n"):
            received = connection.recv(1 << 20)
            assert received
            line += received
        return line


@pytest.fixture
def gateway(tmp_path):
    started = Gateway(tmp_path / "gateway.sock")
    yield started
    started.listener.close()


@pytest.fixture(params=["static", "sanitized"])
def client(request, gateway):
    return make_client(request.getfixturevalue(f"{request.param}_programs"), gateway)


def make_client(programs, gateway):
    def call(*arguments, answer=b"", env=None, cwd=None, read_request=True):
        server = threading.Thread(target=gateway.serve, args=(answer, read_request))
        server.start()
        done = run(programs, *arguments, path=gateway.path, env=env, cwd=cwd)
        server.join(20)
        return done

    return call


def run(programs, *arguments, path, env=None, cwd=None):
    return subprocess.run(
        [programs / "tool-client", *arguments],
        env={"BEIGE_GATEWAY_SOCK": str(path), **(env or {})},
        cwd=cwd,
        capture_output=True,
        timeout=30,
    )


def response(**fields):
    return json.dumps({"type": "tool_response", **fields}).encode() + b"\n"


OK = response(success=True, output="", exitCode=0)


# --- the request ------------------------------------------------------------------------------------


def test_the_request_is_one_line_of_json(client, gateway, tmp_path):
    client("git", "commit", "-m", "a message", answer=OK, cwd=tmp_path)
    assert gateway.request.count(b"\n") == 1
    assert json.loads(gateway.request) == {
        "type": "tool_request",
        "tool": "git",
        "args": ["commit", "-m", "a message"],
        "cwd": str(tmp_path),
    }


def test_the_call_token_of_the_environment_goes_along(client, gateway):
    client("git", answer=OK, env={"BEIGE_CALL_TOKEN": "k-1"})
    assert json.loads(gateway.request)["token"] == "k-1"
    assert json.loads(gateway.request)["args"] == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        'quotes " and \\ backslash',
        "line\nfeed\ttab\r\x01\x1f\x7f",
        "ünï ☃ 𝄞 \U0010ffff",
        "</script>",
        "-",
    ],
)
def test_arguments_survive_the_journey(client, gateway, text):
    client("tool", text, answer=OK)
    assert json.loads(gateway.request)["args"] == [text]


@pytest.mark.parametrize(
    "raw",
    [
        b"\xff",
        b"a\xc3",
        b"\xc0\x80",
        b"\xe0\x80\x80",
        b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80",
        b"\xf8\x88\x80\x80\x80",
    ],
    ids=["byte", "cut off", "overlong 2", "overlong 3", "surrogate", "beyond unicode", "five bytes"],
)
def test_an_argument_that_is_not_utf8_is_refused(static_programs, gateway, raw):
    done = run(static_programs, "tool", "fine", raw, path=gateway.path)
    assert done.returncode == USAGE
    assert done.stderr == b"tool-client: argument 2 is not valid UTF-8, and a tool call is JSON\n"


def test_no_tool_is_a_usage_error(static_programs, gateway):
    assert run(static_programs, path=gateway.path).returncode == USAGE


def test_a_long_request_arrives_whole(client, gateway):
    arguments = ["x" * 100_000] * 10
    client("tool", *arguments, answer=OK)
    assert json.loads(gateway.request)["args"] == arguments


# --- the answer -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "code", "stdout", "stderr"),
    [
        ({"success": True, "output": "OK", "exitCode": 0}, 0, b"OK\n", b""),
        ({"success": True, "output": "OK\n", "exitCode": 0}, 0, b"OK\n", b""),
        ({"success": True, "output": "", "exitCode": 0}, 0, b"", b""),
        ({"success": True, "output": None}, 0, b"", b""),
        ({"success": False, "error": "denied", "exitCode": 1}, 1, b"", b"denied\n"),
        ({"success": False, "output": "part", "error": "then no", "exitCode": 3}, 3, b"part\n", b"then no\n"),
        ({"success": False, "error": "e"}, 1, b"", b"e\n"),
        ({"success": False, "exitCode": 0}, 1, b"", b""),
        ({"success": True, "exitCode": 7}, 7, b"", b""),
        ({"success": False, "exitCode": 255}, 255, b"", b""),
        ({"success": False, "exitCode": 256}, 1, b"", b""),
        ({"success": False, "exitCode": -9}, 1, b"", b""),
        ({"success": True, "extra": [1, {"a": [None, "x"]}], "output": "o"}, 0, b"o\n", b""),
    ],
)  # fmt: skip
def test_output_error_and_exit_code(client, fields, code, stdout, stderr):
    done = client("tool", answer=response(**fields))
    assert (done.returncode, done.stdout, done.stderr) == (code, stdout, stderr)


ESCAPES = {
    "all short ones": (r"\"\\\/\b\f\n\r\tX", '"\\/\b\f\n\r\tX'),
    "basic plane": (r"\u00e9\u2603\u0041", "é☃A"),
    "surrogate pair": (r"\ud834\udd1e\uDBFF\uDFFF", "𝄞\U0010ffff"),
    "lone high": (r"\ud834x", "\ufffdx"),
    "lone low": (r"\udd1e", "\ufffd"),
    "high before another escape": (r"\ud834\n", "\ufffd\n"),
    "high before a character": (r"\ud834\u0041", "\ufffdA"),
    "high high low": (r"\ud834\ud834\udd1e", "\ufffd𝄞"),
    "nul": (r"a\u0000b", "a\0b"),
}


@pytest.mark.parametrize(("escaped", "text"), ESCAPES.values(), ids=ESCAPES)
def test_escapes_are_decoded(client, escaped, text):
    answer = f'{{"type":"tool_response","success":true,"output":"{escaped}"}}\n'.encode()
    expected = text.encode() + (b"" if text.endswith("\n") else b"\n")
    assert client("tool", answer=answer).stdout == expected


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=200), ascii_only=st.booleans())
def test_any_text_comes_out_as_it_went_in(static_programs, gateway, text, ascii_only):
    text = text.encode("utf-8", "replace").decode()
    fields = {"type": "tool_response", "success": True, "output": text}
    answer = json.dumps(fields, ensure_ascii=ascii_only).encode() + b"\n"
    done = make_client(static_programs, gateway)("tool", answer=answer)
    newline = "" if not text or text.endswith("\n") else "\n"
    assert done.stdout.decode() == text + newline


# --- hostile answers --------------------------------------------------------------------------------

HOSTILE = {
    "nothing": b"",
    "an empty line": b"\n",
    "not json": b"hello\n",
    "a list": b"[]\n",
    "an empty object": b"{}\n",
    "another type": b'{"type":"tool_request","success":true}\n',
    "no success": b'{"type":"tool_response","output":"x"}\n',
    "success is no bool": b'{"type":"tool_response","success":"true"}\n',
    "cut off in a string": b'{"type":"tool_response","success":true,"output":"abc',
    "cut off in an escape": b'{"type":"tool_response","success":true,"output":"abc\\',
    "cut off in a unicode escape": b'{"type":"tool_response","success":true,"output":"\\u00',
    "cut off after a high surrogate": b'{"type":"tool_response","success":true,"output":"\\ud834\\u',
    "bad escape": b'{"type":"tool_response","success":true,"output":"\\x41"}\n',
    "bad hex": b'{"type":"tool_response","success":true,"output":"\\u00g0"}\n',
    "raw control character": b'{"type":"tool_response","success":true,"output":"a\tb"}\n',
    "nul in the line": b'{"type":"tool_response","succ\0ess":true}\n',
    "escaped nul byte": b'{"type":"tool_response","success":true,"output":"\\\0"}\n',
    "exit code is text": b'{"type":"tool_response","success":true,"exitCode":"0"}\n',
    "exit code is a fraction": b'{"type":"tool_response","success":true,"exitCode":0.5}\n',
    "exit code is huge": b'{"type":"tool_response","success":true,"exitCode":99999999999999999999999}\n',
    "deep": b'{"type":"tool_response","success":true,"x":' + b"[" * 100_000 + b"\n",
    "deep objects": b'{"type":"tool_response","success":true,"x":' + b'{"a":' * 100_000 + b"\n",
    "something behind it": b'{"type":"tool_response","success":true} x\n',
    "trailing comma": b'{"type":"tool_response","success":true,}\n',
    "output is a list": b'{"type":"tool_response","success":true,"output":[]}\n',
    "too long": b'{"type":"tool_response","success":true,"output":"' + b"x" * MAX_ANSWER + b'"}\n',
    "endless": b"x" * (2 * MAX_ANSWER),
}


@pytest.mark.parametrize("answer", HOSTILE.values(), ids=HOSTILE)
def test_an_unusable_answer_is_one_clear_line_and_exit_70(client, answer):
    done = client("tool", answer=answer)
    assert (done.returncode, done.stdout) == (BAD_ANSWER, b"")
    assert done.stderr.startswith(b"tool-client: ")
    assert done.stderr.count(b"\n") == 1


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_damaged_answer_crashes_it(sanitized_programs, gateway, data):
    """Run under the sanitizers: they report any memory error on stderr."""
    valid = response(success=True, output='a\\ud834"é☃', error=None, exitCode=3, x=[{"y": [1.5e3, None]}])
    at = data.draw(st.integers(0, len(valid) - 1))
    length = data.draw(st.integers(0, 4))
    damaged = valid[:at] + data.draw(st.binary(max_size=4)) + valid[at + length :]
    done = make_client(sanitized_programs, gateway)("tool", answer=damaged)
    assert done.returncode in (0, 1, BAD_ANSWER) or (
        done.returncode < 256 and b"Sanitizer" not in done.stderr
    )
    assert b"Sanitizer" not in done.stderr
    assert b"runtime error" not in done.stderr


def test_an_answer_of_just_the_largest_size_is_read(client):
    head, tail = b'{"type":"tool_response","success":true,"output":"', b'"}'
    text = b"x" * (MAX_ANSWER - len(head) - len(tail))
    assert client("tool", answer=head + text + tail + b"\n").stdout == text + b"\n"


def test_an_answer_given_before_the_request_was_read_still_counts(client):
    answer = response(success=False, error="too large", exitCode=1)
    done = client("tool", *["x" * 100_000] * 15, answer=answer, read_request=False)
    assert done.returncode in (1, BAD_ANSWER)  # the kernel may drop the answer with the connection
    assert done.returncode != 1 or done.stderr == b"too large\n"


# --- no gateway -------------------------------------------------------------------------------------


def test_a_missing_socket_is_one_clear_line(static_programs, tmp_path):
    done = run(static_programs, "tool", path=tmp_path / "none.sock")
    assert done.returncode == UNREACHABLE
    assert done.stderr.startswith(b"tool-client: the gateway is not reachable at ")
    assert done.stderr.endswith(b": No such file or directory\n")


def test_a_socket_nobody_listens_at(static_programs, tmp_path):
    path = tmp_path / "dead.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    done = run(static_programs, "tool", path=path)
    assert (done.returncode, b"Connection refused" in done.stderr) == (UNREACHABLE, True)


def test_a_path_too_long_for_a_socket(static_programs):
    assert run(static_programs, "tool", path="/" + "x" * 200).returncode == UNREACHABLE


@pytest.mark.parametrize("name", ["init", "tool-client", "relay", "file"])
def test_the_programs_need_no_loader(static_programs, name):
    """No program header of type PT_INTERP (3): nothing in the container decides which code they load."""
    elf = (static_programs / name).read_bytes()
    (table,) = struct.unpack_from("<Q", elf, 32)
    size, count = struct.unpack_from("<HH", elf, 54)
    assert 3 not in [struct.unpack_from("<I", elf, table + i * size)[0] for i in range(count)]
