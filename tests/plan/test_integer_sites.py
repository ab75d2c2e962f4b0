"""Oracle: the places written down in each test; ``y.1`` is input 1 of the node that makes ``y``, ``=y`` the
output ``y`` of the model. Elsewhere ONNX Runtime's static quantization, and its optimized graph.
"""

from __future__ import annotations

import pytest

from tests.helpers import plans
from transforms.plan.integer_sites import ARITHMETIC
from transforms.plan.quantization_plan import QuantizationPlan
from transforms.scheme import preset

SQUARE: plans.Weights = {"w": (4, 4), "v": (4, 4), "b": (4,)}
KERNELS: plans.Weights = dict.fromkeys(("w", "v", "u"), (3, 3, 3, 3)) | {"b": (3,)}
PADS = "pads = [1, 1, 1, 1]"


def image(nodes: str, *, output: str = "float[1,3,8,8] y", more: str = "", constants: str = "") -> str:
    """Return a model of an image ``x``; ``conv`` stands for a Conv that keeps its size."""
    head = f"(float[1,3,8,8] x{more}) => ({output}) {constants}"
    return head + "{ " + nodes.replace("conv(", f"Conv <{PADS}> (") + " }"


def places(text: str, weights: plans.Weights | None = None, **changes: object) -> set[str]:
    return set(plans.reads(plans.plan(text, KERNELS if weights is None else weights, **changes)))


def test_operands_of_every_dot_product() -> None:
    text = """(float[4,4] x) => (float[1,4,1,3] y) <int64[4] to = {1, 4, 1, 4}> {
        a = MatMul(x, x) d = Gemm(a, w, b) e = Reshape(d, to) f = Conv(e, k)
        y = ConvTranspose <pads = [0, 0, 0, 1]> (f, t) }"""
    weights = {**SQUARE, "k": (4, 4, 1, 3), "t": (4, 4, 1, 3)}
    wanted = {"a.0", "a.1", "d.0", "d.1", "d.2", "e.0", "f.0", "f.1", "y.0", "y.1", "=y"}
    assert places(text, weights) == wanted


def test_conv_relu_pool_is_quantized_once_and_shares_the_scale() -> None:
    text = image(
        "a = conv(x, w, b) r = Relu(a) p = MaxPool <kernel_shape = [2, 2]> (r) y = Conv(p, v)",
        output="float[1,3,5,5] y",
    )
    planned = plans.plan(text, KERNELS)
    assert set(plans.reads(planned)) == {"a.0", "a.1", "a.2", "p.0", "y.0", "y.1", "=y"}
    assert plans.source_names(planned)["p"] == "r"
    assert [tensor.name for tensor in planned.measured()] == ["x", "r", "y"]


@pytest.mark.parametrize("made", ("Mul(a, d)", "Div(a, d)", "Sub(a, d)", "Concat <axis = 1> (a, d)"))
def test_numbers_before_a_clip_are_cut_off_and_not_rounded(made: str) -> None:
    """Of a ratio, most may lie far outside: their range would leave few steps to what is inside."""
    text = f"""(float[4,4] x) => (float[4,M] y) <float low = {{-1.0}}, float high = {{1.0}}> {{
        a = MatMul(x, w) d = MatMul(x, v) m = {made} c = Clip(m, low, high) y = MatMul(c, u) }}"""
    found = set(
        plans.reads(plans.plan(text, {"w": (4, 4), "v": (4, 4), "u": (8 if "Con" in made else 4, 4)}))
    )
    assert "c.0" not in found and {"m.0", "y.0"} <= found
    assert ("m.1" in found) is (made != "Div(a, d)")


@pytest.mark.parametrize("call", ("Relu(a)", "Clip(a, low, high)", "Clip(a, low)", "Clip(a, , high)"))
@pytest.mark.parametrize("layer", ("conv(x, w)", "Add(d, x)"))
def test_a_layer_is_quantized_after_a_relu_or_clip(call: str, layer: str) -> None:
    constants = "<float low = {0}, float high = {6}>"
    text = image(f"d = conv(x, u) a = {layer} e = {call} y = conv(e, v)", constants=constants)
    operands = {"a.0", "a.1"}
    assert places(text) - {"d.0", "d.1"} == operands | {"y.0", "y.1", "=y"}


def test_a_clip_with_computed_bounds_stays_float() -> None:
    text = image("a = conv(x, w) e = Clip(a, low) y = conv(e, v)", more=", float low")
    assert places(text) == {"a.0", "a.1", "y.0", "y.1", "=y"}
    text = image("a = conv(x, w) e = Clip(a, low) y = Add(e, e)", more=", float low")
    assert places(text) == {"a.0", "a.1"}


@pytest.mark.parametrize("reader", ("y = conv(a, v) z = Identity(r)", "z = Identity(a) y = conv(r, v)"))
def test_before_a_relu_that_is_not_the_only_reader(reader: str) -> None:
    text = image(f"a = conv(x, w) r = Relu(a) {reader}", output="float[1,3,8,8] y, float[1,3,8,8] z")
    read, left = ("y.0", "z.0") if "conv(a" in reader else ("z.0", "y.0")
    assert places(text) == {"a.0", "a.1", "r.0", read, left, "y.1", "=y", "=z"}


def test_before_a_relu_whose_input_is_an_output() -> None:
    text = image("a = conv(x, w) y = Relu(a)", output="float[1,3,8,8] a, float[1,3,8,8] y")
    assert places(text) == {"a.0", "a.1", "=a", "y.0", "=y"}


def test_a_relu_of_what_no_layer_makes_stays_float() -> None:
    text = image("t = Exp(x) r = Relu(t) s = Add(t, r) y = conv(s, w)")
    assert places(text) == {"y.0", "y.1", "=y"}


@pytest.mark.parametrize("add", ("Add(a, b)", "Add(b, a)"))
def test_not_between_a_matmul_and_its_bias(add: str) -> None:
    text = f"(float[4,4] x) => (float[4,4] y) {{ a = MatMul(x, w) s = {add} r = Relu(s) y = MatMul(r, v) }}"
    assert places(text, SQUARE) == {"a.0", "a.1", "y.0", "y.1", "=y"}


@pytest.mark.parametrize(
    "layer",
    (
        "m = Gemm(x, w) t = Identity(m)",
        "m = MatMul(x, w) t = Transpose(m)",
        "m = MatMul(x, w) s = Transpose(m) t = Reshape(s, to)",
    ),
)
def test_not_before_a_bias_that_is_added_to_what_was_moved(layer: str) -> None:
    text = (
        f"(float[4,4] x) => (float[4,4] y) <int64[2] to = {{4, 4}}> {{ {layer} z = Add(t, b) y = Relu(z) }}"
    )
    assert places(text, SQUARE) == {"m.0", "m.1", "=y"}


def test_not_between_a_transposed_conv_and_its_bias() -> None:
    text = "(float[1,2,4,4] x) => (float[1,3,4,4] y) { t = ConvTranspose(x, k) y = Add(t, b) }"
    assert places(text, {"k": (2, 3, 1, 1), "b": (1, 3, 1, 1)}) == {"t.0", "t.1", "=y"}


@pytest.mark.parametrize(
    "nodes",
    (
        "a = Gemm(x, w) t = Transpose(a) z = Add(t, b) y = Add(t, z)",
        "a = Gemm(x, w) t = Transpose(a) z = Add(t, b) y = Add(a, z)",
        "a = MatMul(x, w) z = Add(a, b) y = Add(a, z)",
        "a = MatMul(x, w) z = Add(a, x) y = Add(z, b)",
        "a = MatMul(x, w) h = Relu(a) z = Add(h, b) y = Add(x, z)",
    ),
)
def test_an_added_constant_that_is_no_bias_of_a_product(nodes: str) -> None:
    text = f"(float[4,4] x) => (float[4,4] y) {{ {nodes} }}"
    assert places(text, SQUARE) - {"t.0"} == {"a.0", "a.1", "z.0", "z.1", "y.0", "y.1", "=y"}


def test_a_residual_sum_between_convs() -> None:
    text = image("a = conv(x, w) r = Relu(a) d = conv(r, v) s = Add(d, r) t = Relu(s) y = conv(t, u)")
    operands = {f"{name}.{index}" for name in "ads" for index in range(2)}
    assert places(text) == operands | {"y.0", "y.1", "=y"}


def test_arithmetic_needs_a_layer_before_it() -> None:
    text = image("m = Mul(x, x) a = conv(m, w) s = Add(a, x) d = conv(s, w) e = Cos(d) y = Add(e, e)")
    assert places(text) == {"a.0", "a.1", "s.0", "s.1", "d.0", "d.1"}


UNREAD = {
    "what a Conv makes is rounded after it, the image is not": ("s = Add(a, x) y = Cos(s)", {"s.0"}),
    "so are activations": ("t = Tanh(a) s = Sub(x, t) y = Cos(s)", {"t.0", "s.1"}),
    "and rectifiers": ("t = Relu(a) s = Mul(t, x) y = Cos(s)", {"s.0"}),
    "sums of sums": ("s = Mul(a, x) t = Div(a, x) p = Add(s, t) y = Cos(p)", {"s.0", "t.0"}),
    "moved, and then read": (
        "s = Add(a, x) t = Transpose <perm = [0, 1, 3, 2]> (s) e = MatMul(t, t) y = Cos(e)",
        {"t.0", "s.0", "s.1", "e.0", "e.1"},
    ),
    "rectified, and then read": (
        "s = Add(a, x) t = Relu(s) e = MatMul(t, t) y = Cos(e)",
        {"s.0", "s.1", "e.0", "e.1"},
    ),
    "read once of two times": (
        "s = Add(a, x) e = MatMul(s, s) c = Cos(s) y = Add(e, c)",
        {"s.0", "s.1", "e.0", "e.1", "y.0", "y.1", "=y"},
    ),
    "an output": ("y = Add(a, x)", {"y.0", "y.1", "=y"}),
    "a bias in its way": ("p = Add(a, bias) s = Add(x, p) y = Cos(s)", {"s.1"}),
}


@pytest.mark.parametrize("name", UNREAD)
def test_arithmetic_that_nothing_reads_as_integers(name: str) -> None:
    nodes, expected = UNREAD[name]
    text = image(f"a = conv(x, w) {nodes}")
    held = {**KERNELS, **({"bias": (3, 1, 1)} if "bias" in nodes else {})}
    assert places(text, held) == {"a.0", "a.1"} | expected


@pytest.mark.parametrize("op", sorted(ARITHMETIC - {"Clip", "Relu", "Resize", "Concat"}))
def test_arithmetic_reads_and_makes_integers(op: str) -> None:
    binary = op in ("Add", "Mul", "Sub", "Div", "PRelu")
    attributes = "<kernel_shape = [1, 1]>" if op == "AveragePool" else ""
    output = "float[1,3,1,1] y" if op == "GlobalAveragePool" else "float[1,3,8,8] y"
    text = image(f"a = conv(x, w) y = {op} {attributes} (a{', x' if binary else ''})", output=output)
    both = {"y.0", "y.1"} if binary and op not in ("PRelu", "Div") else {"y.0"}
    assert places(text) == {"a.0", "a.1", "=y"} | both


DIVISORS = {
    "of another tensor": ("n = ReduceL2(d, last)", "", {"y.0", "=y"}),
    "a constant": ("", "", {"y.0", "y.1", "=y"}),
    "a norm of its own": ("n = ReduceL2(a, last)", "", set[str]()),
    "a size of its own": ("k = Shape(a) c = Cast <to = 1> (k) n = ReduceProd(c)", "", {"y.0", "=y"}),
    "a norm of its own, where a kernel divides": (
        "n = ReduceL2(a, last)",
        "qnn",
        {"n.0", "y.0", "y.1", "=y"},
    ),
}


@pytest.mark.parametrize("name", DIVISORS)
def test_a_divisor_is_an_integer_only_where_a_kernel_divides(name: str) -> None:
    """A norm is one number for each sample: eight samples hardly show its range."""
    nodes, target, expected = DIVISORS[name]
    text = image(
        f"a = conv(x, w) {nodes} y = Div(a, {'n' if nodes else 'six'})",
        constants="<float six = {6}, int64[1] last = {3}>",
        more=", float[1,3,8,8] d",
    )
    planned = QuantizationPlan(plans.graph(text, KERNELS), preset("U8S8").with_(target=target))
    assert set(plans.reads(planned)) == {"a.0", "a.1"} | expected


@pytest.mark.parametrize(
    ("layer", "target", "is_integer"),
    (
        ("Conv", "", True),
        ("Gemm", "", False),
        ("MatMul", "", False),
        ("MatMul", "ort-cpu", False),
        ("MatMul", "qnn", True),
    ),
)
def test_layers_that_can_write_floats_do_for_readers_of_floats(
    layer: str, target: str, is_integer: bool
) -> None:
    """What such a layer makes is no operand of a product: a scale of it would serve nothing."""
    if layer == "Conv":
        text = image("a = conv(x, w) s = Add(a, x) y = Cos(s)")
        planned = QuantizationPlan(plans.graph(text, KERNELS), preset("U8S8"))
    else:
        text = f"(float[4,4] x) => (float[4,4] y) {{ a = {layer}(x, w) s = Add(a, x) y = Cos(s) }}"
        planned = QuantizationPlan(plans.graph(text, SQUARE), preset("U8S8").with_(target=target))
    assert ("s.0" in plans.reads(planned)) is is_integer


@pytest.mark.parametrize("op", ("Softmax", "Exp", "ReduceMean", "Gelu", "Pow"))
def test_other_functions_stay_float(op: str) -> None:
    more = ", x" if op == "Pow" else ""
    shape = "1,1,1,1" if op == "ReduceMean" else "1,3,8,8"
    graph = plans.graph(
        image(f"a = conv(x, w) y = {op} (a{more})", output=f"float[{shape}] y"), KERNELS, opset=20
    )
    assert set(plans.reads(QuantizationPlan(graph, preset("A8W8")))) == {"a.0", "a.1"}


def test_resize_reads_integers_but_not_its_scales() -> None:
    text = image(
        "a = conv(x, w) s = Squeeze(scales, first) y = Resize (a, , s)",
        output="float[1,3,16,16] y",
        more=", float[1,4] scales",
        constants="<int64[1] first = {0}>",
    )
    assert places(text) == {"a.0", "a.1", "y.0", "=y"}


MOVES = (
    "Reshape(x, to)",
    "Transpose <perm = [0, 1, 3, 2]> (x)",
    "Identity(x)",
    "Flatten <axis = 0> (x)",
    "Squeeze(x, zero)",
    "Unsqueeze(x, zero)",
    "MaxPool <kernel_shape = [2, 2]> (x)",
    "GlobalMaxPool(x)",
    "Gather <axis = 2> (x, zero)",
    "GatherElements(x, ones)",
    "GatherND(x, zero)",
    "DepthToSpace <blocksize = 1> (x)",
    "SpaceToDepth <blocksize = 2> (x)",
    "Expand(x, twice)",
    "Tile(x, twice)",
    "Pad(x, pads)",
    "Pad(x, pads, naught)",
    'Pad <mode = "reflect"> (x, pads, one)',
)
CONSTANTS = """<int64[4] to = {1, 3, 16, 4}, int64[1] zero = {0}, int64[1,1,1,2] ones = {1, 1},
    int64[4] twice = {2, 1, 1, 1}, int64[8] pads = {0, 0, 1, 0, 0, 0, 1, 0}, float naught = {0},
    float one = {1}>"""


@pytest.mark.parametrize("call", MOVES)
def test_moves_of_a_layer_s_result_have_its_scale(call: str) -> None:
    moved = call.replace("(x", "(a")
    text = f"(float[1,4,8,8] x) => (float y) {CONSTANTS} {{ a = Conv(x, k) m = {moved} y = Identity(m) }}"
    text = text.replace("float y", "float[K] y")
    graph = plans.loose_graph(text, {"k": (4, 4, 1, 1)})
    planned = QuantizationPlan(graph, preset("A8W8"))
    assert set(plans.reads(planned)) == {"a.0", "a.1", "m.0", "y.0", "=y"}
    assert set(plans.source_names(planned).values()) == {"x", "k", "a"}
    assert [tensor.name for tensor in planned.measured()] == ["x", "a"]


@pytest.mark.parametrize(
    "call", ("Pad(a, pads, one)", "Pad(a, pads, value)", "Slice(a, zero, eight)", "Exp(a)")
)
def test_what_has_another_scale_than_its_input(call: str) -> None:
    text = f"""(float[1,3,8,8] x, float value) => (float[K,L,M,N] y) <int64[8] pads = {{0,0,1,1,0,0,1,1}},
        float one = {{1}}, int64[4] zero = {{0,0,0,0}}, int64[4] eight = {{1,3,8,4}}> {{
        a = Conv(x, w) m = {call} y = Conv(m, v) }}"""
    planned = plans.plan(text, KERNELS, align_slice=False)
    slice_ = {"m.0"} if "Slice" in call else set()
    assert set(plans.reads(planned)) == {"a.0", "a.1", "y.0", "y.1", "=y"} | slice_
    assert plans.source_names(planned)["m"] == "m"


@pytest.mark.parametrize(("read", "shared"), (("Sigmoid(t)", True), ("MatMul(p, t)", False)))
def test_parts_that_no_product_reads_have_the_scale_of_the_whole(read: str, shared: bool) -> None:
    """On a scale of their own they would be rounded twice."""
    text = f"""(float[4,4] x) => (float[4,4] y) {{
        a = MatMul(x, w) p, q = Split <axis = 1, num_outputs = 2> (a)
        t = Transpose(q) y = {read} }}"""
    planned = plans.plan(text.replace("[4,4] y", "[K,L] y"), SQUARE)
    assert planned.scheme.align_slice == "auto"
    assert plans.source_names(planned)["t"] == ("a" if shared else "q")


@pytest.mark.parametrize("share", (False, True))
def test_parts_have_the_scale_of_the_whole_only_where_slices_are_aligned(share: bool) -> None:
    text = """(float[4,4] x) => (float[4,4] y) {
        a = MatMul(x, w) p, q = Split <axis = 1, num_outputs = 2> (a)
        t = Transpose(q) y = MatMul(p, t) }"""
    planned = plans.plan(text, SQUARE, align_slice=share)
    assert set(plans.reads(planned)) == {"a.0", "a.1", "p.0", "t.0", "y.0", "y.1", "=y"}
    sources = plans.source_names(planned)
    assert (sources["a"], sources["p"]) == ("a", "a" if share else "p")
    assert (sources["q"], sources["t"]) == (("a", "a") if share else ("q", "q"))


def test_a_move_before_the_first_layer() -> None:
    text = "(float[4,4] x) => (float[4,4] y) { t = Transpose(x) y = MatMul(t, w) }"
    planned = plans.plan(text, SQUARE)
    assert set(plans.reads(planned)) == {"t.0", "y.0", "y.1", "=y"}
    assert plans.source_names(planned)["t"] == "x"


@pytest.mark.parametrize("other", ("Exp(t)", "Transpose(t)"))
def test_a_move_that_something_else_reads_too_stays_float(other: str) -> None:
    """A residual stream would be rounded on its way past the layers otherwise."""
    text = f"""(float[4,4] x) => (float[4,4] y, float[4,4] z) {{
        t = Transpose(x) y = MatMul(t, w) z = {other} }}"""
    planned = plans.plan(text, SQUARE)
    assert set(plans.reads(planned)) == {"y.0", "y.1", "=y"}
    assert plans.source_names(planned)["t"] == "t"


def test_a_move_whose_shape_is_read() -> None:
    text = """(float[4,4] x) => (float[4,4] y, int64[2] s, int64 n) {
        t = Transpose(x) s = Shape(t) n = Size(t) y = MatMul(t, w) }"""
    assert places(text, SQUARE) == {"t.0", "y.0", "y.1", "=y"}


def test_a_move_that_a_body_reads_stays_float() -> None:
    text = """(float[4,4] x, bool c) => (float[4,4] y, float[4,4] z) {
        t = Transpose(x) y = MatMul(t, w)
        z = If (c) <then_branch = e () => (float[4,4] p) { p = Exp(t) },
                    else_branch = f () => (float[4,4] q) { q = Identity(y) }> }"""
    assert places(text, SQUARE) == {"y.0", "y.1", "=y"}


def test_indices_of_a_pool_are_no_numbers() -> None:
    text = """(float[1,3,8,8] x) => (float[1,3,7,7] y, int64[1,3,7,7] i) {
        a = Conv(x, k) p, i = MaxPool <kernel_shape = [2, 2]> (a) y = Conv(p, k) }"""
    assert places(text, {"k": (3, 3, 1, 1)}) == {"a.0", "a.1", "p.0", "y.0", "y.1", "=y"}


def test_indices_of_a_pool_may_be_read() -> None:
    text = """(float[1,3,8,8] x) => (float[1,3,7,7] y, float[1,3,8,8] z) {
        a = Conv(x, k) p, i = MaxPool <kernel_shape = [2, 2]> (a) y = Conv(p, k)
        z = MaxUnpool <kernel_shape = [2, 2]> (y, i) }"""
    assert places(text, {"k": (3, 3, 1, 1)}) == {"a.0", "a.1", "p.0", "y.0", "y.1", "=y"}


def test_a_move_of_which_the_shape_alone_is_read_stays_float() -> None:
    text = "(float[4,4] x) => (float[4,4] y, int64[2] s) { t = Transpose(x) s = Shape(t) y = MatMul(x, w) }"
    assert places(text, SQUARE) == {"y.0", "y.1", "=y"}


def test_a_move_of_numbers_made_of_integers() -> None:
    text = "(uint8[4,4] x) => (float[4,4] y) { f = Cast <to = 1> (x) t = Transpose(f) y = MatMul(t, w) }"
    assert places(text, SQUARE) == {"t.0", "y.0", "y.1", "=y"}


def test_moves_of_other_domains_are_not_known() -> None:
    text = "(float[4,4] x) => (float[4,4] y) { a = MatMul(x, w) t = Transpose(a) y = MatMul(t, v) }"
    graph = plans.graph(text, SQUARE)
    graph.nodes[1].domain = "com.acme"
    planned = QuantizationPlan(graph, preset("A8W8"))
    assert set(plans.reads(planned)) == {"a.0", "a.1", "y.0", "y.1", "=y"}
    assert plans.source_names(planned)["t"] == "t"
    assert planned.specs.integers.maker(graph.nodes[1].outputs[0]) is None


def test_a_bias_behind_an_operator_of_another_domain() -> None:
    text = "(float[4,4] x) => (float[4,4] y) { a = MatMul(x, w) t = Transpose(a) y = Add(t, b) }"
    graph = plans.graph(text, SQUARE)
    origin = QuantizationPlan(graph, preset("A8W8")).specs.integers.origin(graph.outputs[0])
    assert origin.name == "a"
    graph.nodes[1].domain = "com.acme"
    origin = QuantizationPlan(graph, preset("A8W8")).specs.integers.origin(graph.outputs[0])
    assert origin.name == "y"


def test_arithmetic_of_other_domains_is_not_known() -> None:
    graph = plans.graph("(float[4,4] x) => (float[4,4] y) { a = MatMul(x, w) y = Add(a, x) }", SQUARE)
    graph.nodes[1].domain = "com.acme"
    assert set(plans.reads(QuantizationPlan(graph, preset("A8W8")))) == {"a.0", "a.1"}


def test_a_table_of_embeddings_is_left_alone() -> None:
    text = "(int64[3] i) => (float[3,4] y) { e = Gather(t, i) y = MatMul(e, v) }"
    planned = plans.plan(text, {**SQUARE, "t": (5, 4)})
    assert set(plans.reads(planned)) == {"y.0", "y.1", "=y"}
    assert plans.source_names(planned)["e"] == "e"


TEXT = """(int64[4] ids) => (float[4,6] logits) {
    e = Gather(table, ids) a = MatMul(e, w) s = Sigmoid(a) p = Mul(a, s) k = Transpose(p) q = MatMul(p, k)
    m = MatMul(q, p) r = Add(m, a) logits = MatMul(r, head) }"""
OF_TEXT: plans.Weights = {"table": (6, 4), "w": (4, 4), "head": (4, 6)}


def test_in_a_language_model_products_with_stored_weights_alone_read_integers() -> None:
    assert places(TEXT, OF_TEXT) == {"a.0", "a.1", "logits.0", "logits.1"}
    everything = places(TEXT, OF_TEXT, arithmetic=True)
    assert {"p.0", "q.0", "q.1", "r.0", "=logits"} <= everything


def test_without_arithmetic_no_other_model_has_it_either() -> None:
    text = "(float[4,4] x) => (float[4,4] y) { c = MatMul(x, w) d = Sigmoid(c) y = MatMul(d, v) }"
    assert places(text, SQUARE, arithmetic=False) == {"c.0", "c.1", "y.0", "y.1"}
    assert "d.0" in places(text, SQUARE)
