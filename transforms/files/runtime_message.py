"""Messages of ONNX Runtime and onnx without the parts that only their developers need.

These contain status codes, places in C++ sources, signatures of C++ functions, the condition of an
assertion, and each node around the failing one. What remains is the node and what is wrong with it.
"""

from __future__ import annotations

import re

_SPEAKERS = ("onnxruntime", "onnx")

_SIBLING = re.compile(r"\n+(?=\(op_type:)|\n *Stacktrace:")
"""Separator of several errors of onnx's inference, or of an error and its stack trace."""

_CODE = re.compile(r"\[ONNXRuntimeError\] : \d+ : \w+ : ")

NO_REASON = "ONNX Runtime gives no reason"
"""The message for a status alone, as for unsupported types."""

_STATUS = re.compile(r"\[ONNXRuntimeError\] : \d+ : (\w+) :")

_PREFIX = re.compile(
    r"\[ONNXRuntimeError\] : \d+ : \w+ : |\[(?:Shape|Type)InferenceError\] *|Inference error\(s\): *"
    r"|Exception (?:during initialization|caught): *|Fatal error: |Type Error: |Invalid model\. "
    r"|This is an invalid model\. *(?:Error: )?|Load model from .*? failed: *|Error: "
)
"""Words before a message that only say that there is one."""

_NODES = (
    re.compile(
        r"Non-zero status code returned while running (?P<op>\S+) node\. "
        r"Name:'(?P<name>.*?)' Status Message: ?"
    ),
    re.compile(
        r'In Node, \("(?P<name>.*?)", (?P<op>[^,]+), "[^"]*", -?\d+\) : \(.*?\) -> \(.*?\) , Error '
        r"(?:Node ?\(.*?\) with schema\(.*?\) )?"
    ),
    re.compile(r"Node ?\((?P<name>.*?)\) Op ?\((?P<op>\w+)\) "),
    re.compile(r"\(op_type: ?(?P<op>[^,)]+)(?:, node name: (?P<name>.*?))?\): "),
)
"""Prefix of an error: the node's name."""

_CONTEXT = re.compile(
    r"^(?P<said>.*?) ==> Context: Bad node spec for node\. Name: (?P<name>.*?) OpType: (?P<op>\S+)"
)
"""The form in which onnx's checker names the invalid node."""

_PLACE = re.compile(
    r"(?:(?P<whole>(?:[A-Za-z]:)?[/\\][^\s:]*)|(?<![^\s\]])[\w.-]+)\.(?:cc|cpp|cu|cuh|h|hpp|inl|inc|mm)"
    r"(?:\(\d+\)|:\d+):? "
)
"""A place in a C++ source, followed by a function: by its signature after a full path, else by its name."""

_FUNCTION = re.compile(r"^(?:~?\w[\w:~<>]*|operator *\(\)):? ")
_BEHIND_SIGNATURE = re.compile(r"^(?: const\b| noexcept\b)* ?:? ?")
_CONDITION = re.compile(r"^(?:(?:(?!\. ).)*? was false\. *|Assertion [`'].*?['`] failed: *)(?=\S)")
"""The condition of an assertion, if a message of its own follows."""

_ADVICE = re.compile(
    r" *Please fix either the inputs/outputs or the model\."
    r"|ONNX Runtime only \*guarantees\* support .*? opset versions\. "
    r"| ; GPU=-?\d+ ; hostname=.*"
    r"| The operator schemas and or other functionality may change .*? backward compatibility\."
)


def said_by_runtime(error: BaseException | str) -> str:
    """Return in one line what an exception of ONNX Runtime, onnx's checker or its inference says.

    A node is named as in ``Gather 'pick': indices element out of data bounds``, after the nodes in whose
    bodies it is; an unnamed node by its operator alone. Status codes, places in C++ sources, signatures,
    conditions and advice are left out. Of several errors the first is returned. ValueError and OSError are
    not theirs: their text is returned in one line, or their type if there is none.
    """
    text = " ".join(str(error).split())
    if isinstance(error, ValueError | OSError) or not text:
        return text or type(error).__name__
    if status := _STATUS.fullmatch(text):
        return f"{status[1].replace('_', ' ').lower()}, {NO_REASON}"
    said = " ".join(_SIBLING.split(str(error).strip(), maxsplit=1)[0].split())
    nodes = []
    if context := _CONTEXT.match(said):
        nodes, said = [_label(context)], context["said"]
    inner, said = _nodes_before(said)
    left = _ADVICE.sub("", _without_places(said)).strip().removesuffix(".")
    return ": ".join([*nodes, *inner, *([left] if left else [])]) or text


def is_of_runtime(error: BaseException) -> bool:
    """Return whether an exception belongs to ONNX Runtime or onnx."""
    return type(error).__module__.partition(".")[0] in _SPEAKERS


def _nodes_before(text: str) -> tuple[list[str], str]:
    """Return the nodes at the start of a message, outermost first, and the rest of it."""
    nodes = []
    while True:
        node = next(filter(None, (pattern.match(text) for pattern in _NODES)), None)
        if node is not None:
            nodes.append(_label(node))
        if prefix := node or _PREFIX.match(text):
            text = text[prefix.end() :]
        elif prefix := _PLACE.match(text):
            text = _behind_function(text[prefix.end() :], is_signature=bool(prefix["whole"]))
        else:
            return nodes, text


def _label(found: re.Match[str]) -> str:
    return f"{found['op']} '{found['name']}'" if found["name"] else found["op"]


def _without_places(text: str) -> str:
    """Return a message without places in sources and the developers' text after them."""
    kept = ""
    while found := _PLACE.search(text):
        kept += text[: found.start()]
        text = _behind_function(text[found.end() :], is_signature=bool(found["whole"]))
    return _CODE.sub("", kept + text)


def _behind_function(text: str, *, is_signature: bool) -> str:
    """Return the text after a function at its beginning, and after the condition that the function tests."""
    end = _end_of_signature(text) if is_signature else None
    if end is None:
        text = _FUNCTION.sub("", text, count=1)
    else:
        text = _BEHIND_SIGNATURE.sub("", text[end:], count=1)
        text = text[_closed(text, "[", "]") :].lstrip() if text.startswith("[with ") else text
    return _CONDITION.sub("", text, count=1)


def _end_of_signature(text: str) -> int | None:
    """Return where the parameters of a function end: the first parentheses outside angle brackets.

    Parentheses in names are skipped, as in ``(anonymous namespace)::f(int)`` and ``operator()(int)``.
    """
    i, depth = 0, 0
    while i < len(text):
        if text[i] == "<":
            depth += 1
        elif text[i] == ">":
            depth -= 1
        elif text[i] == "(" and depth <= 0:
            end = i + _closed(text[i:], "(", ")")
            if text[end : end + 1] not in ("(", ":"):
                return end if "." not in text[:i] else None
            i = end - 1
        i += 1
    return None


def _closed(text: str, opening: str, closing: str) -> int:
    """Return the place after the bracket that closes the first one, or the end of the text."""
    depth = 0
    for i, char in enumerate(text):
        depth += (char == opening) - (char == closing)
        if not depth:
            return i + 1
    return len(text)
