"""The four core tools as the model sees them: schemas, arguments, and results as content. No I/O.

Arguments are the model's words: wrong ones become a result that names the field, so that it can try
again. Output is data from the sandbox: it is cut, decoded, and never interpreted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from beige.errors import BeigeError, Denied, PeerLost
from beige.messages.sandbox import ExecResult, PatchResult, ReadResult, WriteResult
from services.llm.conversation import Image as ImageBlock
from services.llm.conversation import Result, Text, ToolCall

TEXT_LIMIT = 64 * 1024
"""Characters of one stream or file that a model gets at once: head and tail are kept."""
IMAGE_LIMIT = 3_750_000
"""Bytes; base64 makes 5 MB of it, the smallest limit among the providers."""
IMAGE_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
_PEOPLE_LIMIT, _PEOPLE_ARGS, _PEOPLE_NAME = 2000, 20, 100

PathArg = Annotated[
    str, Meta(min_length=1, max_length=4096, description="Absolute, or relative to /workspace.")
]


class ReadArgs(Struct, forbid_unknown_fields=True):
    path: PathArg
    offset: Annotated[int, Meta(ge=1, description="First line to return, counted from 1.")] = 1
    limit: Annotated[int, Meta(ge=0, description="Number of lines; 0 for the default.")] = 0


class WriteArgs(Struct, forbid_unknown_fields=True):
    path: PathArg
    content: Annotated[str, Meta(description="The whole new content of the file.")]


class PatchArgs(Struct, forbid_unknown_fields=True):
    path: PathArg
    old: Annotated[str, Meta(min_length=1, max_length=256 * 1024, description="The exact text to replace.")]
    new: Annotated[str, Meta(max_length=256 * 1024, description="The text to put in its place.")]
    all: Annotated[bool, Meta(description="Replace every occurrence instead of exactly one.")] = False


class ExecArgs(Struct, forbid_unknown_fields=True):
    command: Annotated[str, Meta(min_length=1, max_length=512 * 1024, description="A bash command line.")]
    cwd: Annotated[str, Meta(max_length=4096, description="Working directory.")] = "/workspace"
    timeout_s: Annotated[
        float, Meta(ge=0, description="Seconds until it is killed; 0 for the longest allowed.")
    ] = 0.0


Args = ReadArgs | WriteArgs | PatchArgs | ExecArgs

_TOOLS: dict[str, tuple[type[Args], str]] = {
    "read": (
        ReadArgs,
        "Read a file. Text comes with a notice if lines are left out (go on with offset); images "
        "(png, jpeg, gif, webp) are shown to you.",
    ),
    "write": (WriteArgs, "Create or overwrite a file; missing directories are made."),
    "patch": (
        PatchArgs,
        "Replace text in a file. `old` must match exactly and be unique in the file, unless `all` is set.",
    ),
    "exec": (
        ExecArgs,
        "Run a command with bash in the sandbox. Returns exit code, stdout and stderr. The command has no "
        "terminal and no standard input; what it started is killed when it ends.",
    ),
}


@dataclass(frozen=True)
class ToolSpec:
    name: str
    description: str
    schema: dict[str, Any]
    """JSON Schema of the arguments, an object."""


def _schema(arguments: type[Struct]) -> dict[str, Any]:
    schema = msgspec.json.schema(arguments)["$defs"][arguments.__name__]
    return {key: value for key, value in schema.items() if key != "title"}


SPECS = tuple(ToolSpec(name, text, _schema(arguments)) for name, (arguments, text) in _TOOLS.items())


class WrongArguments(Exception):
    """The model's call can't be run as it stands; the text tells the model why."""


def parse_arguments(call: ToolCall) -> Args:
    """The typed arguments of a call. Numbers in strings and nulls for optional fields, which models
    send, are accepted. WrongArguments names the tool or field."""
    if call.name not in _TOOLS:
        raise WrongArguments(f"There is no tool {call.name!r}. The tools are: {', '.join(_TOOLS)}.")
    if call.invalid:
        raise WrongArguments(
            f"The arguments of {call.name} are not a JSON object (cut off?): {cut(call.invalid, 200)}"
        )
    given = {name: value for name, value in call.args.items() if value is not None}
    try:
        return msgspec.convert(given, _TOOLS[call.name][0], strict=False)
    except msgspec.ValidationError as error:
        raise WrongArguments(f"Wrong arguments for {call.name}: {error}") from None


def exec_content(result: ExecResult) -> list[Result]:
    """Exit code, stdout and stderr, each a block of its own."""
    state = f"exit code {result.exit_code}"
    if result.timed_out:
        state += f" (killed: it ran out of time after {result.duration_ms / 1000:.1f} s)"
    blocks: list[Result] = [Text(state)]
    for name, data, left_out in (
        ("stdout", result.stdout, result.stdout_cut),
        ("stderr", result.stderr, result.stderr_cut),
    ):
        if data:
            text = cut(data.decode(errors="replace"), TEXT_LIMIT)
            notice = f" ({left_out} bytes were left out)" if left_out else ""
            blocks.append(Text(f"{name}{notice}:\n{text}"))
    return blocks if len(blocks) > 1 else [Text(state + ", no output")]


def read_content(result: ReadResult, content: bytes) -> list[Result]:
    """`content` is the result's own or what was streamed."""
    if result.kind == "image":
        return _image_content(result, content)
    if result.kind == "binary":
        return [Text(result.notice or f"a binary file of {result.size} bytes; look at it with exec")]
    return _text_content(result, content.decode(errors="replace"))


def _text_content(result: ReadResult, text: str) -> list[Result]:
    """Whole lines from the first on, and a notice where to go on."""
    notice = result.notice
    end = text.rfind("\n", 0, TEXT_LIMIT) + 1
    if len(text) > TEXT_LIMIT and end:
        text = text[:end]
        following = result.first_line + text.count("\n")
        notice = f"[lines {result.first_line} to {following - 1} are shown; go on with offset={following}]"
    blocks: list[Result] = [Text(cut(text, TEXT_LIMIT))] if text else []
    return [*blocks, Text(notice or "[the file is empty]")] if notice or not text else blocks


def _image_content(result: ReadResult, content: bytes) -> list[Result]:
    if result.media_type not in IMAGE_TYPES or len(content) > IMAGE_LIMIT:
        return [
            Text(
                f"an image ({result.media_type}, {result.size} bytes) that can't be shown: "
                f"png, jpeg, gif or webp of at most {IMAGE_LIMIT} bytes can"
            )
        ]
    return [Text(f"image {result.media_type}, {result.size} bytes"), ImageBlock(result.media_type, content)]


def write_content(path: str, result: WriteResult) -> list[Result]:
    return [Text(f"{'created' if result.created else 'overwrote'} {path}, {result.size} bytes")]


def patch_content(path: str, result: PatchResult) -> list[Result]:
    places = "1 place" if result.replacements == 1 else f"{result.replacements} places"
    return [Text(f"changed {path} in {places}, first at line {result.first_line}")]


def error_content(error: BeigeError) -> list[Result]:
    """What the model learns of a call that failed: the reason, and whether it may have been done."""
    if isinstance(error, Denied):
        return [Text(f"denied: {error.message}")]
    text = f"error ({error.code}): {error.message}"
    if isinstance(error, PeerLost) or error.executed == "maybe":
        text += ". It may or may not have been executed: look before you do it again."
    return [Text(text)]


def cut(text: str, limit: int) -> str:
    """`text` with its middle left out if it is longer than `limit` characters, and a notice there."""
    if len(text) <= limit:
        return text
    half = limit // 2
    notice = f"\n[... {len(text) - 2 * half} characters left out ...]\n"
    return text[:half] + notice + text[-half:]


def people_args(call: ToolCall) -> dict[str, Any]:
    """A call's arguments as shown to people while it runs: long or odd ones are cut, as the model may
    have sent anything."""
    if call.invalid:
        return {"invalid": cut(call.invalid, _PEOPLE_LIMIT)}
    shown = list(call.args.items())[:_PEOPLE_ARGS]
    return {cut(name, _PEOPLE_NAME): _for_people(value) for name, value in shown}


def _for_people(value: Any) -> Any:
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int) and abs(value) < 2**53:
        return value
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return cut(text, _PEOPLE_LIMIT)
