"""Oracle: graphs small enough to be counted by hand."""

from __future__ import annotations

import pytest

from tests.helpers import corpus
from transforms import model_io
from transforms.convert_opset import convert_opset
from transforms.graph import walk
from transforms.graph.selection import (
    Choice,
    Selection,
    counterparts,
    label_of,
    literal,
    matches,
    resolve,
    select,
)
from transforms.widen_float16 import widen_float16

GRAPH = """(float[N] x, bool c) => (float[N] y) { [enc_0] a = Tanh(x) [enc_1] b = Exp(a) [dec_0] d = Neg(b)
    [branch] y = If (c) <then_branch = t () => (float[N] p) { [in_then] p = Exp(d) },
                         else_branch = e () => (float[N] p) { p = Tanh(d) }> }"""


def chosen(names: tuple[str, ...] = (), op_types: tuple[str, ...] = ()) -> list[str]:
    graph = model_io.load(corpus.parse(GRAPH))
    selection = select(graph, names=names, op_types=op_types)
    found = selection.resolve_in(graph)
    return [node.name or f"unnamed {node.op}" for node in walk.nodes(graph) if node in found]


@pytest.mark.parametrize(
    ("names", "op_types", "expected"),
    (
        ((), (), []),
        (("enc_*",), (), ["enc_0", "enc_1"]),
        (("enc_0", "d?c_0"), (), ["enc_0", "dec_0"]),
        (("in_then",), (), ["in_then"]),
        (("ENC_*", "enc_1"), (), None),
        ((), ("Exp",), ["enc_1", "in_then"]),
        (("enc_1",), ("Exp", "Neg"), ["enc_1", "dec_0", "in_then"]),
        (("branch",), (), ["branch", "in_then", "unnamed Tanh"]),
        ((), ("If",), ["branch", "in_then", "unnamed Tanh"]),
        (("p",), (), ["unnamed Tanh"]),
        (("*",), (), ["enc_0", "enc_1", "dec_0", "branch", "in_then", "unnamed Tanh"]),
    ),
)
def test_patterns_and_operators(
    names: tuple[str, ...], op_types: tuple[str, ...], expected: list[str] | None
) -> None:
    if expected is None:
        with pytest.raises(ValueError, match=r"no node name matches 'ENC_\*'"):
            chosen(names, op_types)
    else:
        assert chosen(names, op_types) == expected


def test_an_operator_that_is_absent_is_named_with_those_present() -> None:
    with pytest.raises(
        ValueError, match="operator type 'tanh', did you mean 'Tanh'\\?; the model has Exp, If, Neg, Tanh"
    ):
        chosen(op_types=("tanh",))


def test_resolving_tells_branches_and_equal_names_apart() -> None:
    text = GRAPH.replace("[enc_1] b", "[enc_0] b")
    graph = model_io.load(corpus.parse(text))
    other = model_io.load(corpus.parse(text.replace("d = Neg(b)", "b2 = Abs(b) d = Neg(b2)")))
    followed = select(graph, op_types=["Exp"]).resolve_in(other)
    assert [node.op for node in walk.nodes(other) if node in followed] == ["Exp", "Exp"], "not the Tanh enc_0"
    followed = select(graph, names=["in_then"]).resolve_in(other)
    assert [node.name for node in walk.nodes(other) if node in followed] == ["in_then"], "not what else makes"


def test_resolving_finds_nodes_by_name_or_by_what_they_make() -> None:
    graph = model_io.load(corpus.parse(GRAPH))
    selection = select(graph, names=("enc_0", "dec_0"))
    other = model_io.load(
        corpus.parse(GRAPH.replace("[enc_0]", "[renamed]").replace("[dec_0] d", "[dec_0] d"))
    )
    followed = selection.resolve_in(other)
    assert [node.name for node in walk.nodes(other) if node in followed] == ["renamed", "dec_0"]
    assert len(Selection().resolve_in(other)) == 0


def test_a_node_without_a_name_goes_by_what_it_makes() -> None:
    """The branch without a name makes p; the node of the other branch that makes p has a name."""
    graph = model_io.load(corpus.parse(GRAPH))
    assert sorted(label_of(node) for node in walk.nodes(graph)) == [
        *("branch", "dec_0", "enc_0", "enc_1", "in_then", "p")
    ]


def test_new_nodes_belong_to_what_reads_them() -> None:
    """Softmax before opset 13 becomes a Flatten, a Softmax and a Reshape; an input in float16 gets a Cast."""
    model = corpus.parse(
        "(float[2,3,4] x) => (float[2,3,4] y) { [soft] y = Softmax <axis = 1> (x) }", opset=11
    )
    graph = model_io.load(model)
    selection, nothing = select(graph, names=["soft"]), select(graph)
    convert_opset(graph, 13)
    followed = selection.resolve_in(graph)
    assert {node.op for node in graph.nodes if node in followed} >= {"Flatten", "Softmax"}
    assert not len(nothing.resolve_in(graph))
    half = model_io.load(corpus.parse("(float16[2] x) => (float16[2] y) { [a] t = Sin(x) [b] y = Cos(t) }"))
    first, second = (select(half, names=[name]) for name in "ab")
    widen_float16(half)
    (cast,) = (node for node in half.nodes if node.op == "Cast" and node.inputs[0].name == "x")
    assert cast in first.resolve_in(half)
    assert cast not in second.resolve_in(half)


def test_counterparts_are_what_a_selection_resolves_to() -> None:
    graph, other = (model_io.load(corpus.parse(GRAPH)) for _ in range(2))
    found = counterparts(graph, other)
    for node in walk.nodes(graph):
        followed = Selection(graph, [node]).resolve_in(other)
        assert {id(one) for one in found[id(node)]} == {id(o) for o in walk.nodes(other) if o in followed}


def labels(choice: Choice) -> list[str]:
    graph = model_io.load(corpus.parse(GRAPH))
    chosen = resolve(choice, graph)
    left = resolve(None, graph, choice)
    assert [node in chosen for node in walk.nodes(graph)] == [node not in left for node in walk.nodes(graph)]
    return [label_of(node) for node in walk.nodes(graph) if node in chosen]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("enc_*", ["enc_0", "enc_1"]),
        ("Exp", ["enc_1", "in_then"]),
        (["dec_0", "Tanh"], ["enc_0", "dec_0", "p"]),
        ("branch", ["branch", "in_then", "p"]),
        (lambda node: node.op == "If", ["branch"]),
        (lambda node: False, []),
        ([], []),
        (Selection(), []),
    ],
)
def test_what_chooses_nodes(choice: Choice, expected: list[str]) -> None:
    """A name, a pattern or an operator type; a function is asked about each node, those of bodies, too."""
    assert labels(choice) == expected


def test_nodes_choose_themselves() -> None:
    graph = model_io.load(corpus.parse(GRAPH))
    assert [label_of(node) for node in resolve([graph.nodes[1]], graph)] == ["enc_1"]
    assert [label_of(node) for node in resolve(graph.nodes[1], graph)] == ["enc_1"]
    other = model_io.load(corpus.parse(GRAPH))
    with pytest.raises(ValueError, match=r"the node 'enc_1' of exclude is not a node of the graph"):
        resolve(graph.nodes[1], other)


def test_what_is_excluded_is_not_chosen() -> None:
    graph = model_io.load(corpus.parse(GRAPH))
    left = resolve("enc_1", graph, "enc_*")
    assert [label_of(node) for node in graph.nodes if node not in left] == ["enc_0"]


def test_a_choice_that_is_none() -> None:
    graph = model_io.load(corpus.parse(GRAPH))
    with pytest.raises(ValueError, match=r"no node name or operator type matches 'enc_9', did you mean"):
        resolve(None, graph, ["enc_9"])
    for wrong in (3, [3], graph):
        with pytest.raises(TypeError, match=r"^nodes takes a selection, a function of a node, or nodes, "):
            resolve(None, graph, wrong)


@pytest.mark.parametrize(
    "pattern", ["conv", "a[*]b", "[[]x]", "[C]onv", "a[?]", "a]b", "x[-]", "[^]y", "é[*]", "n" * 2500 + "*"]
)
def test_a_literal_is_the_one_name_that_a_pattern_matches(pattern: str) -> None:
    name = literal(pattern)
    assert name is not None and matches(name, pattern)


@pytest.mark.parametrize("pattern", ["*", "a?", "[ab]", "[!a]", "a[!]*", "[]", "x[", "[]]"])
def test_patterns_with_wildcards_are_no_literals(pattern: str) -> None:
    assert literal(pattern) is None
