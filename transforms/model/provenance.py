"""The origin of a model: entries that the tools leave in its metadata, and hashes that identify models."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import metadata

import onnxruntime

PREFIX = "onnx_narrow."


def entries(tool: str, options: Mapping[str, object], source_sha256: str | None) -> dict[str, str]:
    """Return metadata entries that name the tool, its version, its options (JSON) and the source's digest."""
    result = {
        "tool": tool,
        "version": version(),
        "options": json.dumps(dict(options), sort_keys=True),
    }
    if source_sha256:
        result["source_sha256"] = source_sha256
    return {PREFIX + key: value for key, value in result.items()}


def tool(metadata_props: Mapping[str, str]) -> str | None:
    """Return the name of the tool that made the model, or None for a model not made by ours."""
    return metadata_props.get(PREFIX + "tool")


def option(metadata_props: Mapping[str, str], name: str) -> object | None:
    """Return an option recorded by an earlier conversion, or None."""
    try:
        return json.loads(metadata_props.get(PREFIX + "options", "{}")).get(name)
    except (ValueError, AttributeError):
        return None


def software() -> str:
    """Return the versions on which numbers depend, as a key for stored results."""
    return f"onnx-narrow {version()}, onnxruntime {onnxruntime.__version__}"


def version() -> str:
    """Return the version of the installed distribution, or "unknown" in a checkout that was not installed."""
    try:
        return metadata.version("onnx-narrow")
    except metadata.PackageNotFoundError:
        return "unknown"
