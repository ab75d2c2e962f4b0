"""Oracles: the float model in ONNX Runtime, whose outputs stay the same up to rounding in float32; NumPy's
largest channel of what layers read.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

from tests.helpers import conversion
from transforms import model_io
from transforms.channels.hadamard import rotated as rotated_by_matrix
from transforms.rotate_channels import rotate_channels

WORDS, WIDTH, INNER = 50, 48, 40

PARTS = """sq{n} = Pow(x{n}, two) mean{n} = ReduceMean<axes = [-1]>(sq{n}) sum{n} = Add(mean{n}, eps)
    root{n} = Sqrt(sum{n}) inverse{n} = Div(one, root{n}) unit{n} = Mul(x{n}, inverse{n})
    h{n} = Mul(s{n}, unit{n})"""
FUSED = "h{n} = RMSNormalization<axis = -1, epsilon = 0.00001>(x{n}, s{n})"
SQUARED = """sq{n} = Mul(x{n}, x{n}) mean{n} = ReduceMean<axes = [-1]>(sq{n}) sum{n} = Add(mean{n}, eps)
    root{n} = Sqrt(sum{n}) unit{n} = Div(x{n}, root{n}) h{n} = Mul(unit{n}, s{n})"""
CENTRED = "h{n} = LayerNormalization<axis = -1>(x{n}, s{n}, t{n})"
CENTRED_PARTS = """mean{n} = ReduceMean<axes = [-1]>(x{n}) c{n} = Sub(x{n}, mean{n}) sq{n} = Pow(c{n}, two)
    var{n} = ReduceMean<axes = [-1]>(sq{n}) sum{n} = Add(var{n}, eps) root{n} = Sqrt(sum{n})
    unit{n} = Div(c{n}, root{n}) scaled{n} = Mul(unit{n}, s{n}) h{n} = Add(scaled{n}, t{n})"""
LAYER = """g{n} = MatMul(h{n}, wg{n}) a{n} = Sigmoid(g{n}) u{n} = MatMul(h{n}, wu{n}) p{n} = Mul(a{n}, u{n})
    d{n} = MatMul(p{n}, wd{n}) {more}"""
PLAIN_SUM = "x{next} = Add(x{n}, d{n})"
BIASED_SUM = "b{n} = Add(d{n}, bias) x{next} = Add(x{n}, b{n})"

NODE = "level = Constant<value_floats = [" + ", ".join(["1.0"] * WIDTH) + "]>()"
BACKWARDS = """last = Constant<value_ints = [-1]>() end = Constant<value_ints = [-99]>()
    e = Gather(table, ids) x0 = Slice(e, last, end, last, last)"""


def decoder(
    norm: str, *, added: str = PLAIN_SUM, tied: str = "", start: str = "", ends: str = ""
) -> onnx.ModelProto:
    """Return one of two layers, with an outlying channel in its states; ``tied``: how its head is stored."""
    first = start or "x0 = Gather(table, ids)"
    layers = [norm.format(n=n) + LAYER.format(n=n, more=added.format(n=n, next=n + 1)) for n in range(2)]
    head = {"": "logits = MatMul(h2, head)", "transposed": "t = Transpose(table) logits = MatMul(h2, t)"}
    head["copy"] = head[""]
    text = " ".join([first, *layers, norm.format(n=2), head[tied]])
    made = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : {23 if "RMS" in norm else 17}]> decoder
        (int64[b,t] ids) => (float[b,t,{WORDS}] logits{ends}) {{ {text} }}"""
    )
    for name, array in weights(tied).items():
        if any(name in node.input for node in made.graph.node):
            made.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(np.float32), name))
    return made


def weights(tied: str) -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)
    loud = np.where(np.arange(WIDTH) == 5, 100, 1)
    found = {
        "table": random.standard_normal((WORDS, WIDTH)) * loud,
        "two": np.array(2.0),
        "eps": np.array(1e-5),
    }
    found |= {"one": np.array(1.0), "root": np.array(4.9), "bias": random.standard_normal(WIDTH)}
    for n in range(3):
        found[f"s{n}"] = 1 + 0.3 * random.standard_normal(WIDTH)
        found[f"t{n}"] = 0.3 * random.standard_normal(WIDTH)
        found |= {f"w{c}{n}": random.standard_normal((WIDTH, INNER)) * 0.2 for c in "gu"}
        found[f"wd{n}"] = random.standard_normal((INNER, WIDTH)) * 0.2
    quiet = np.where(loud > 1, 0.02, 1)[:, None]  # layers make little of the outlying channel
    for name in ("wg0", "wu0", "wg1", "wu1"):
        found[name] = found[name] * quiet
    random_head = random.standard_normal((WIDTH, WORDS)) * quiet
    found["head"] = found["table"].T if tied == "copy" else random_head
    return found


def rotated(source: onnx.ModelProto, **options: object) -> tuple[int, onnx.ModelProto]:
    return conversion.rewritten(model_io.load(source), lambda graph: rotate_channels(graph, **options))


def seen(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """Return the model with a tensor as one more output."""
    made = onnx.ModelProto.FromString(model.SerializeToString())
    made.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    return made


FEED = {"ids": np.arange(24).reshape(2, 12) * 2}


NORMS = {
    "parts": PARTS,
    "fused": FUSED,
    "squared": SQUARED,
    "centred": CENTRED,
    "centred parts": CENTRED_PARTS,
}


@pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)
@pytest.mark.parametrize("tied", ("", "transposed", "copy"))
@pytest.mark.parametrize("added", (PLAIN_SUM, BIASED_SUM), ids=("plain", "biased"))
def test_the_model_stays_the_same_without_its_outlying_channel(norm: str, tied: str, added: str) -> None:
    source = decoder(norm, tied=tied, added=added, ends="")
    count, made = rotated(source)
    assert count >= 7
    expected, found = (conversion.run(one, FEED)["logits"] for one in (source, made))
    assert np.abs(found - expected).max() < 2e-5 * np.abs(expected).max()  # 48 terms, 100 times as large
    states = [conversion.run(seen(one, "x1"), FEED)["x1"] for one in (source, made)]
    largest = [np.abs(one).max() / np.sqrt(np.square(one).mean()) for one in states]
    assert largest[1] < largest[0] / 1.5  # without chance: 2.2 beside sqrt(48), times that of a row
    assert made.graph.node[0].op_type == "Gather"


def test_a_shared_table_stays_the_transpose_of_its_head() -> None:
    made = rotated(decoder(FUSED, tied="copy"))[1]
    arrays = {one.name: onnx.numpy_helper.to_array(one) for one in made.graph.initializer}
    assert np.array_equal(arrays["table"].T, arrays["head"])


def test_a_factor_of_the_embedding_and_of_rows_stays() -> None:
    source = decoder(FUSED, start="e = Gather(table, ids) x0 = Mul(e, root)")
    count, made = rotated(source)
    expected, found = (conversion.run(one, FEED)["logits"] for one in (source, made))
    assert count and np.abs(found - expected).max() < 2e-5 * np.abs(expected).max()


REFUSED = {
    "other axes": {"norm": CENTRED.replace("-1", "1")},
    "computed bias": {"norm": "k{n} = Sigmoid(t{n}) " + CENTRED.replace("t{n})", "k{n})")},
    "other means": {"norm": CENTRED_PARTS.replace("[-1]", "[1]")},
    "mean of tokens": {"norm": CENTRED + " pooled{n} = ReduceMean<axes = [1]>(x{n}) z{n} = Exp(pooled{n})"},
    "maximum": {"norm": CENTRED_PARTS.replace("ReduceMean<axes = [-1]>(x", "ReduceMax<axes = [-1]>(x")},
    "subtracted bias": {"norm": CENTRED_PARTS.replace("Add(scaled", "Sub(scaled")},
    "normalized read": {"norm": FUSED + " z{n} = Abs(h{n})"},
    "squares read": {"norm": SQUARED + " z{n} = Exp(sq{n})"},
    "post-norm": {
        "norm": FUSED,
        "added": FUSED.replace("h{n}", "q{n}").replace("x{n}", "d{n}") + " x{next} = Add(x{n}, q{n})",
    },
    "output": {"norm": FUSED, "ends": f", float[b,t,{WIDTH}] x1"},
    "relu": {"norm": FUSED, "start": "e = Gather(table, ids) x0 = Relu(e)"},
    "channel factor": {"norm": FUSED, "start": "e = Gather(table, ids) x0 = Mul(e, bias)"},
    "transpose": {"norm": FUSED, "start": "e = Gather(table, ids) x0 = Transpose<perm = [2, 0, 1]>(e)"},
    "integers": {"norm": FUSED, "start": "e = Gather(table, ids) i = Cast<to = 7>(e) x0 = Cast<to = 1>(i)"},
    "slice": {"norm": FUSED, "start": BACKWARDS},
    "constant node": {"norm": FUSED, "start": f"{NODE} e = Gather(table, ids) x0 = Add(e, level)"},
    "weight of a node": {"norm": FUSED + f" {NODE.replace('level', 'k{n}')} z{{n}} = MatMul(h{{n}}, k{{n}})"},
}


@pytest.mark.parametrize("changes", REFUSED.values(), ids=REFUSED)
def test_what_does_not_commute_stays(changes: dict[str, str]) -> None:
    source = decoder(**changes)
    count, made = rotated(source)
    unchanged = rotated(source, nodes=[])[1]
    assert count == 0 and made == unchanged


def test_excluded_layers_keep_the_states_as_they_are() -> None:
    source = decoder(FUSED)
    last = next(node for node in model_io.load(source).nodes if "wd1" in [one.name for one in node.inputs])
    assert rotated(source, exclude=[last.name or last.outputs[0].name])[0] == 0


@pytest.mark.parametrize("channels", (1, 2, 24, 31, 576, 1024))
def test_the_matrix_is_orthogonal_keeps_ones_and_spreads_channels(channels: int) -> None:
    matrix = rotated_by_matrix(np.eye(channels), -1).astype(np.float64)
    assert np.allclose(matrix @ matrix.T, np.eye(channels), atol=1e-6)
    assert np.allclose(matrix.sum(0), 1, atol=1e-6)
    # a Hadamard or cosine matrix beside the product of two vectors that are as large in few of their numbers
    assert np.abs(matrix).max() <= min(1, np.sqrt(2 / channels) + 20 / channels) * (1 + 1e-6)
    values = np.random.default_rng(0).standard_normal((channels, 3)).astype(np.float32)
    assert np.allclose(rotated_by_matrix(values, 0), matrix.T @ values, atol=1e-5)
