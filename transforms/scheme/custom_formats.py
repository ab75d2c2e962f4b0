"""Number formats defined by a scheme: a block format of the table with other attributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ops.formats import ATTRIBUTES, BFP, FORMATS, GROUPS, Format, block_format, check_attribute, check_groups
from ops.legal_names import refuse_unknown

_HIDDEN = frozenset({"convert_to_bfloat_before_bfp", "use_compiler_version_cpu_kernel"})
_GROUPS = {key: ATTRIBUTES[BFP][key].default for key in GROUPS}

_LEGAL: Mapping[str, Mapping[str, Sequence[int] | Sequence[str]]] = {
    op: {key: known.legal for key, known in attributes.items() if key not in _HIDDEN}
    for op, attributes in ATTRIBUTES.items()
}


def make_format(name: str, definition: Mapping[str, Any]) -> Format:
    """Return the format ``name``, defined by a ``base`` format and overriding attributes of its operator.

    The base is a block format of the table.

    Raises ValueError naming format and attribute for a name that is taken, a base without blocks, an unknown
    or ineffective attribute, and an illegal value.
    """
    if name in FORMATS or name in ("float32", "auto"):
        raise ValueError(f"format '{name}' cannot be redefined: the name is taken")
    base = _base(name, definition)
    changes = {key: value for key, value in definition.items() if key != "base"}
    attributes, legal = {**base.attributes, **changes}, _LEGAL[base.op]
    if base.op == BFP and attributes.get("bfp_method", "to_bfp") == "to_bfp":  # blocks without groups
        legal = {key: values for key, values in legal.items() if key not in _GROUPS}
        attributes = {key: value for key, value in attributes.items() if key in changes or key not in _GROUPS}
    elif base.op == BFP:
        attributes = {**_GROUPS, **attributes}
    subject = f"format '{name}'"
    for key, value in attributes.items():
        refuse_unknown(key, legal, f"{subject}: attribute")
        check_attribute(subject, key, value, legal[key])
    check_groups(subject, attributes)
    return block_format(name, base.op, attributes)


def _base(name: str, definition: Mapping[str, Any]) -> Format:
    blocks = [fmt.name for fmt in FORMATS.values() if fmt.op in _LEGAL]
    base = definition.get("base")
    if base not in blocks:
        given = "has no base" if base is None else f"has base {base!r}"
        raise ValueError(f"format '{name}' {given}, legal are the block formats {', '.join(blocks)}")
    return FORMATS[str(base)]
