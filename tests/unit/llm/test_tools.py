import pytest

from beige.errors import Denied, Failed, PeerLost, Unavailable
from beige.messages import CORE_TOOLS
from beige.messages.sandbox import ExecResult, PatchResult, ReadResult, WriteResult
from services.llm.conversation import Image, Text, ToolCall
from services.llm.tools import (
    SPECS,
    ExecArgs,
    PatchArgs,
    ReadArgs,
    WriteArgs,
    WrongArguments,
    cut,
    error_content,
    exec_content,
    parse_arguments,
    patch_content,
    read_content,
    write_content,
)


def call(name, **args):
    return ToolCall("t", name, args)


def test_the_model_gets_exactly_the_four_core_tools():
    assert tuple(spec.name for spec in SPECS) == CORE_TOOLS
    for spec in SPECS:
        assert spec.schema["type"] == "object" and spec.schema["additionalProperties"] is False
        assert spec.description and all(
            "description" in field for field in spec.schema["properties"].values()
        )


@pytest.mark.parametrize(
    ("given", "typed"),
    [
        (call("read", path="a"), ReadArgs("a")),
        (call("read", path="a", offset=5, limit=None), ReadArgs("a", 5)),
        (call("read", path="a", offset="5"), ReadArgs("a", 5)),
        (call("write", path="a", content=""), WriteArgs("a", "")),
        (call("patch", path="a", old="x", new=""), PatchArgs("a", "x", "")),
        (call("exec", command="ls"), ExecArgs("ls")),
        (call("exec", command="ls", timeout_s=3), ExecArgs("ls", timeout_s=3.0)),
    ],
)
def test_right_arguments_are_typed(given, typed):
    assert parse_arguments(given) == typed


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (call("read"), "required field `path`"),
        (call("read", path=["a"]), "$.path"),
        (call("read", path="a", offset=0), "$.offset"),
        (call("write", path="a"), "required field `content`"),
        (call("write", path="a", content={"x": 1}), "$.content"),
        (call("patch", path="a", old="", new="b"), "$.old"),
        (call("exec", command="ls", agent="other"), "unknown field `agent`"),
        (call("exec", command="ls", timeout_s=-1), "$.timeout_s"),
        (call("bash", command="ls"), "no tool 'bash'. The tools are: read, write, patch, exec"),
        (ToolCall("t", "exec", invalid='{"command": "ls'), 'not a JSON object (cut off?): {"command": "ls'),
    ],
)
def test_wrong_arguments_name_the_field(given, said):
    with pytest.raises(WrongArguments) as raised:
        parse_arguments(given)
    assert said in str(raised.value)


def test_exit_code_stdout_and_stderr_stay_apart():
    blocks = exec_content(ExecResult(exit_code=3, stdout=b"out\n", stderr=b"err\xff\n"))
    assert blocks == [Text("exit code 3"), Text("stdout:\nout\n"), Text("stderr:\nerr\ufffd\n")]


def test_no_output_is_said():
    assert exec_content(ExecResult(exit_code=0)) == [Text("exit code 0, no output")]


def test_cut_output_and_timeouts_are_told():
    blocks = exec_content(
        ExecResult(exit_code=124, stdout=b"x", stdout_cut=900, timed_out=True, duration_ms=2000)
    )
    assert blocks[0].text == "exit code 124 (killed: it ran out of time after 2.0 s)"
    assert blocks[1].text == "stdout (900 bytes were left out):\nx"


def test_a_model_never_gets_more_than_its_share():
    blocks = exec_content(ExecResult(exit_code=0, stdout=b"a" * 500_000 + b"END"))
    assert len(blocks[1].text) < 70_000 and blocks[1].text.endswith("END")
    assert "characters left out" in blocks[1].text


def test_a_text_file_comes_with_its_notice():
    result = ReadResult(kind="text", content=b"one\n", notice="[lines 2 to 9 were left out]")
    assert read_content(result, result.content) == [Text("one\n"), Text("[lines 2 to 9 were left out]")]
    assert read_content(ReadResult(kind="text", content=b"one"), b"one") == [Text("one")]
    assert read_content(ReadResult(kind="text"), b"") == [Text("[the file is empty]")]


def test_a_long_text_file_ends_at_a_line_and_says_where_to_go_on():
    lines = "".join(f"line {number:05}\n" for number in range(100, 20_000))
    text, notice = read_content(ReadResult(kind="text", first_line=100, notice="[...]"), lines.encode())
    assert len(text.text) <= 64 * 1024 and text.text.endswith("\n")
    last = int(text.text.splitlines()[-1].split()[1])
    assert notice.text == f"[lines 100 to {last} are shown; go on with offset={last + 1}]"


def test_one_endless_line_is_cut_in_the_middle():
    (text,) = read_content(ReadResult(kind="text"), b"x" * 200_000)
    assert len(text.text) < 70_000 and "characters left out" in text.text


def test_an_image_is_shown_and_one_that_cant_be_is_named():
    shown = read_content(ReadResult(kind="image", media_type="image/png", size=3), b"png")
    assert shown[1] == Image("image/png", b"png")
    for media_type, content in (("image/tiff", b"x"), ("image/png", b"x" * 4_000_000)):
        blocks = read_content(ReadResult(kind="image", media_type=media_type, size=len(content)), content)
        assert len(blocks) == 1 and "can't be shown" in blocks[0].text


def test_binary_files_are_not_printed():
    assert "binary" in read_content(ReadResult(kind="binary", size=9), b"\0" * 9)[0].text


def test_write_and_patch_say_what_they_did():
    assert write_content("a", WriteResult(size=3, created=True)) == [Text("created a, 3 bytes")]
    assert write_content("a", WriteResult(size=3, created=False)) == [Text("overwrote a, 3 bytes")]
    assert patch_content("a", PatchResult(1, 7)) == [Text("changed a in 1 place, first at line 7")]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (Denied("Permission denied: tool 'x'"), "denied: Permission denied: tool 'x'"),
        (Unavailable("nobody serves sandbox"), "error (unavailable): nobody serves sandbox"),
        (PeerLost("the sandbox died"), "may or may not have been executed"),
        (Failed("no container", executed="no"), "error (failed): no container"),
    ],
)
def test_errors_become_words_for_the_model(error, said):
    text = error_content(error)[0].text
    assert said in text
    assert ("may or may not" in text) == (error.executed == "maybe")


def test_cut_keeps_head_and_tail():
    assert cut("abcdefghij", 4) == "ab\n[... 6 characters left out ...]\nij"
    assert cut("abcd", 4) == "abcd"
