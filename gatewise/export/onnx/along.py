"""Operations that look along axes, in ONNX: sums, norms, products, windows."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gatewise.export.onnx.graph import Graph
from gatewise.export.onnx.layers import layer_norm
from gatewise.export.onnx.tensors import Held, Tensors
from gatewise.program.graph import BOOL, FLOAT, INT, Node
from gatewise.program.operations import Convolve, Cumulate, LayerNorm, Matmul, Pool, Reduce, Softmax

REDUCED = {
    "sum": "ReduceSum", "mean": "ReduceMean", "max": "ReduceMax", "min": "ReduceMin", "prod": "ReduceProd",
    "any": "ReduceMax", "all": "ReduceMin", "logsumexp": "ReduceLogSumExp",
}  # fmt: skip
KEEPS_CHANNELS = ("sum", "mean", "max", "min")  # over other axes: channels of zeros stay zero


def reduced(t: Tensors, node: Node, op: Reduce) -> Held:
    (source,) = node.inputs
    if not op.axes:
        return Held(t.whole(source, node.kind))
    apart = op.function in KEEPS_CHANNELS and op.axes[-1] < source.rank - 1
    held = t.some(source) if apart else Held(t.whole(source))
    kind = reduced_kind(op.function, source.kind, node.kind)
    x = t.cast(held.name, source.kind, kind)
    made = over(t, x, source, op)
    located = op.function in ("argmax", "argmin")
    return Held(t.cast(made, INT if located else kind, node.kind), held.kept)


def reduced_kind(function: str, kind: str, answer: str) -> str:
    """What ONNX Runtime reduces: sums, products and limits of whole numbers, all else of float32."""
    if function in ("any", "all"):
        return INT
    if function in ("sum", "prod", "max", "min") and FLOAT not in (kind, answer):
        return INT
    return FLOAT


def over(t: Tensors, x: str, source: Node, op: Reduce) -> str:
    graph, axes, keep = t.graph, op.axes, int(op.keep)
    if op.function in REDUCED:
        if op.function in ("any", "all") and source.kind != BOOL:
            x = graph.add("Cast", graph.add("Cast", x, to=graph.bool), to=graph.int64)
        return graph.over(REDUCED[op.function], x, *axes, keepdims=keep)
    if op.function in ("argmax", "argmin"):
        operator = {"argmax": "ArgMax", "argmin": "ArgMin"}[op.function]
        return graph.add(operator, x, axis=axes[0], keepdims=keep)
    if op.function == "norm":
        return norm(graph, x, op.settings[0], axes, keep)
    if op.function == "median":
        return median(t, x, source.shape[axes[0]], op)
    return spread(t, x, source, op)


def norm(graph: Graph, x: str, p: float, axes: Sequence[int], keep: int) -> str:
    """(sum |x|^p)^(1/p), the largest or smallest |x| if p is infinite."""
    if p in (1, 2):
        return graph.over(f"ReduceL{p:.0f}", x, *axes, keepdims=keep)
    size = graph.add("Abs", x)
    if math.isinf(p):
        return graph.over("ReduceMax" if p > 0 else "ReduceMin", size, *axes, keepdims=keep)
    total = graph.over("ReduceSum", graph.add("Pow", size, graph.number(p)), *axes, keepdims=keep)
    return graph.add("Pow", total, graph.number(1 / p))


def spread(t: Tensors, x: str, source: Node, op: Reduce) -> str:
    """sum (x - E x)^2 / (n - correction), or its root."""
    graph, (correction,) = t.graph, op.settings
    centred = graph.add("Sub", x, graph.over("ReduceMean", x, *op.axes, keepdims=1))
    total = graph.over("ReduceSum", graph.add("Mul", centred, centred), *op.axes, keepdims=int(op.keep))
    count = t.sizes.number(math.prod(source.shape[axis] for axis in op.axes))
    count = graph.add("Squeeze", graph.add("Cast", count, to=graph.float32))
    variance = graph.add("Div", total, graph.add("Sub", count, graph.number(correction)))
    return graph.add("Sqrt", variance) if op.function == "std" else variance


def median(t: Tensors, x: str, size: int, op: Reduce) -> str:
    """The lower one of the two in the middle, as torch has it: the largest of the (n + 1) // 2 smallest."""
    graph, (axis,) = t.graph, op.axes
    smallest, _ = graph.add_many(
        "TopK", [x, t.sizes.number((size + 1) // 2)], [True, True], axis=axis, largest=0
    )
    return graph.over("ReduceMax", smallest, axis, keepdims=int(op.keep))


def softmaxed(t: Tensors, node: Node, op: Softmax) -> str:
    return t.graph.add("LogSoftmax" if op.log else "Softmax", t.whole(node.inputs[0], FLOAT), axis=op.axis)


def cumulated(t: Tensors, node: Node, op: Cumulate) -> str:
    return t.graph.add("CumSum", t.whole(node.inputs[0], node.kind), t.graph.integer(op.axis))


def multiplied(t: Tensors, node: Node, op: Matmul) -> str:
    product = t.graph.add("MatMul", *(t.whole(source, FLOAT) for source in node.inputs))
    return t.cast(product, FLOAT, node.kind)


def normalised(t: Tensors, node: Node, op: LayerNorm) -> str:
    source, *more = node.inputs
    made = layer_norm(t.graph, t.whole(source, FLOAT), source.shape[-op.axes :], op.eps)
    for operator, value in zip(["Mul"] * op.scaled + ["Add"] * op.shifted, more, strict=True):
        made = t.graph.add(operator, made, t.whole(value))
    return made


def convolved(t: Tensors, node: Node, op: Convolve) -> str:
    settings = {"strides": [op.stride], "dilations": [op.dilation], "pads": list(op.padding)}
    return t.graph.add("Conv", *map(t.whole, node.inputs), group=op.groups, **settings)


def pooled(t: Tensors, node: Node, op: Pool) -> str:
    """ONNX wants a batch; some versions of AveragePool know no dilation."""
    graph, x = t.graph, t.whole(node.inputs[0])
    alone = node.rank == 2
    x = graph.add("Unsqueeze", x, graph.integers(0)) if alone else x
    settings = {"kernel_shape": [op.kernel], "strides": [op.stride], "pads": list(op.padding)}
    if op.function == "max":
        made = graph.add("MaxPool", x, dilations=[op.dilation], **settings)
    else:
        made = graph.add("AveragePool", x, count_include_pad=int(op.counts_padding), **settings)
    return graph.add("Squeeze", made, graph.integers(0)) if alone else made


RULES = {
    Reduce: reduced, Softmax: softmaxed, Cumulate: cumulated, Matmul: multiplied, LayerNorm: normalised,
    Convolve: convolved, Pool: pooled,
}  # fmt: skip
