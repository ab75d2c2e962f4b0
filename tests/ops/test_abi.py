"""The declared C ABI. Oracle: the public order of OrtApi, of which these indices are known facts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DECLARATIONS = Path(__file__).resolve().parents[2] / "ops" / "_ort_abi.pxd"
INDICES = {
    "CreateStatus": 0,
    "GetErrorMessage": 2,
    "CreateCustomOpDomain": 26,
    "CustomOpDomain_Add": 27,
    "AddCustomOpDomain": 28,
    "GetTensorMutableData": 51,
    "CastTypeInfoToTensorInfo": 55,
    "SetTensorElementType": 58,
    "GetTensorElementType": 60,
    "GetDimensionsCount": 61,
    "GetDimensions": 62,
    "GetSymbolicDimensions": 63,
    "GetTensorTypeAndShape": 65,
    "KernelInfoGetAttribute_int64": 86,
    "KernelInfoGetAttribute_string": 87,
    "KernelContext_GetInput": 90,
    "KernelContext_GetOutput": 91,
    "ReleaseStatus": 93,
    "ReleaseTypeInfo": 98,
    "ReleaseTensorTypeAndShapeInfo": 99,
    "KernelInfo_GetInputTypeInfo": 234,
    "KernelInfo_GetNodeName": 244,
    "ShapeInferContext_GetInputTypeShape": 268,
    "ShapeInferContext_SetOutputTypeShape": 270,
    "SetSymbolicDimensions": 271,
    "KernelContext_ParallelFor": 274,
}


def declared_indices() -> dict[str, int]:
    """Return the index of each typed member of OrtApi, counting the padding."""
    body = DECLARATIONS.read_text(encoding="utf-8").split("cdef struct OrtApi:")[1].split("\n\n")[0]
    index, found = 0, {}
    for padding, name in re.findall(r"void\* _pad\d+\[(\d+)\]|\(\*(\w+)\)(?= ?\((?!\*))", body):
        if name == "work":
            continue  # the function that ParallelFor takes
        if name:
            found[name] = index
        index += int(padding or 1)
    return found


@pytest.mark.parametrize(("name", "index"), INDICES.items())
def test_index_of_a_function(name: str, index: int) -> None:
    assert declared_indices()[name] == index


def test_every_index_that_a_comment_states() -> None:
    text = DECLARATIONS.read_text(encoding="utf-8")
    following = re.findall(r"# (\d+)\n\s+\w+\W+\(\*(\w+)\)", text)
    assert len(following) > 8
    assert all(declared_indices()[name] == int(index) for index, name in following)
