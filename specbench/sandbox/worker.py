"""What runs inside the sandbox, handed to `python -I -S -c` as text: one side answers calls, the other asks and judges.

Frames on one socket: four bytes of length, then that many bytes. Both sides say b"ready", and get their job as JSON.
The program's side then says what went wrong while loading (nothing is all right), and answers each call with a value.
The tests' side says b"C" and a call, b"F" and a reason, or b"P". Only this side's socket can carry a verdict.
"""

import builtins
import contextlib
import json
import os
import resource
import struct
import sys
import types
from collections import Counter, OrderedDict, defaultdict
from typing import Any

CHANNEL = 3
DESCRIPTORS = 64
LONGEST_LINE = 200  # characters of an exception that travel


def contain(limits: dict[str, int]) -> None:
    """Keep the socket alone of all descriptors, forget the environment, and take on the limits for good."""
    os.dup2(0, CHANNEL, inheritable=False)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.closerange(CHANNEL + 1, 4096)
    os.environ.clear()
    with contextlib.suppress(PermissionError):
        os.setsid()  # a signal to one's own process group must not leave the sandbox; "none" leads a session already
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # where memory runs short, this goes first
    for name, wanted in limits.items():
        hard = resource.getrlimit(getattr(resource, name))[1]
        value = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(getattr(resource, name), (value, value))


def send(data: bytes) -> None:
    view = memoryview(struct.pack(">I", len(data)) + data)
    while view:
        view = view[os.write(CHANNEL, view) :]


def receive() -> bytes:
    """The next frame. Raises EOFError when the other end is gone."""
    (size,) = struct.unpack(">I", read(4))
    return read(size)


def read(size: int) -> bytes:
    parts = []
    while size:
        part = os.read(CHANNEL, min(size, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def encode(value: Any) -> Any:
    """JSON of plain data: everything but None, bool, int, float, str and list is tagged. Raises TypeError for the rest.

    Types are compared exactly, since a subclass can bring an `__eq__` of its own. The standard library's dictionaries go as
    plain ones.
    """
    kind = type(value)
    if value is None or kind in (bool, str, float):
        return value
    if kind is int:
        return value if -(2**63) <= value < 2**63 else {"int": hex(value)}
    if kind is list:
        return [encode(item) for item in value]
    if kind in (tuple, set, frozenset):
        return {kind.__name__: [encode(item) for item in value]}
    if kind in (dict, OrderedDict, defaultdict, Counter):  # equal to a dict of the same items
        return {"dict": [[encode(key), encode(item)] for key, item in value.items()]}
    if kind is bytes:
        return {"bytes": value.hex()}
    if kind is complex:
        return {"complex": [value.real, value.imag]}
    raise TypeError(f"a value of type {kind.__name__} is not plain data")


def decode(data: Any) -> Any:
    if isinstance(data, list):
        return [decode(item) for item in data]
    if not isinstance(data, dict):
        return data
    ((kind, inner),) = data.items()
    if kind == "int":
        return int(inner, 16)
    if kind == "bytes":
        return bytes.fromhex(inner)
    if kind == "complex":
        return complex(*inner)
    if kind == "dict":
        return {decode(key): decode(item) for key, item in inner}
    return {"tuple": tuple, "set": set, "frozenset": frozenset}[kind](decode(item) for item in inner)


def said_by(error: BaseException) -> str:
    """The first line of what an exception says."""
    try:
        return str(error).strip().partition("\n")[0][:LONGEST_LINE]
    except BaseException:  # it is the program's, and may have a `__str__` of its own
        return ""


def line_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {said_by(error)}"[:LONGEST_LINE].rstrip(": ")


def serve(program: str, entry_point: str) -> None:
    """The program's side: load it, then answer calls until the socket closes."""
    module = types.ModuleType("program")
    sys.modules["program"] = module  # dataclasses and pickle look a class's module up
    try:
        exec(compile(program, "<program>", "exec"), module.__dict__)
        if entry_point not in module.__dict__:
            raise NameError(f"{entry_point} is not defined")
    except BaseException as error:
        send(line_of(error).encode(errors="replace"))
        return
    send(b"")
    while True:
        send(answer(module.__dict__[entry_point], receive()))


def answer(function: Any, call: bytes) -> bytes:
    try:
        arguments, named = decode(json.loads(call))
        said = {"value": encode(function(*arguments, **named))}
        return json.dumps(said).encode()
    except BaseException as error:
        return json.dumps({"error": [type(error).__name__, said_by(error)]}).encode()


def examine(preamble: str, test: str, entry_point: str) -> None:
    """The tests' side: the verdict is "passed" only if `check` comes back."""
    module = types.ModuleType("tests")
    sys.modules["tests"] = module
    scope = module.__dict__
    try:
        exec(compile(preamble, "<preamble>", "exec"), scope)
        scope[entry_point] = ask  # some tests call the function by its name
        exec(compile(test, "<test>", "exec"), scope)
        scope["check"](ask)
    except BaseException as error:
        send(b"F" + line_of(error).encode(errors="replace"))
    else:
        send(b"P")


def ask(*arguments: Any, **named: Any) -> Any:
    """The candidate as the tests see it. Raises what the candidate raised: a built-in of that name, or else Exception."""
    send(b"C" + json.dumps(encode([list(arguments), named])).encode())
    reply = json.loads(receive())
    if "value" in reply:
        return decode(reply["value"])
    raise exception(*reply["error"])


def exception(name: str, said: str) -> Exception:
    kind = getattr(builtins, name, None)
    if kind in (StopIteration, StopAsyncIteration):  # would end a loop of the tests as if all had been asked
        kind = RuntimeError
    if isinstance(kind, type) and issubclass(kind, Exception):
        with contextlib.suppress(TypeError):  # some want more than a text
            return kind(said)
    return Exception(f"{name}: {said}")


def main() -> None:
    contain(json.loads(sys.argv[2]))
    send(b"ready")
    with contextlib.suppress(EOFError):
        job = json.loads(receive())
        if sys.argv[1] == "program":
            serve(**job)
        else:
            examine(**job)
    os._exit(0)  # whatever threads and exit handlers there are


if __name__ == "__main__":
    main()
