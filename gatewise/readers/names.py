"""Operations of torch by name: what they do to channels, and whether their result has memory of its own."""

from __future__ import annotations

from typing import Any

# Functions that keep channels apart, by whether f(0) = 0.
KEEPS_ZERO = set(
    "relu relu_ relu6 tanh tanh_ gelu silu elu selu leaky_relu hardswish mish softsign tanhshrink sin abs neg square "
    "sqrt sign clone".split()
)
MOVES_ZERO = set(
    "sigmoid sigmoid_ exp cos softplus logsigmoid hardsigmoid hardtanh clamp clamp_ clip pow".split()
)
DIVISIONS = set("truediv itruediv div div_ divide true_divide".split())
BINARY = DIVISIONS | set("add iadd sub isub mul imul maximum minimum add_ sub_ mul_ where".split())
REDUCTIONS = set("mean sum amax amin max min median logsumexp prod std var".split())
POOLS = set("max_pool1d avg_pool1d adaptive_max_pool1d adaptive_avg_pool1d".split())
METADATA = set(
    "dim numel size shape device dtype ndim is_cuda new_zeros new_ones new_empty zeros_like ones_like batch_sizes "
    "sorted_indices unsorted_indices len".split()
)
PACKS = ("pack_padded_sequence", "pack_sequence")
JOINS = set("cat concat concatenate stack matmul bmm".split())  # units in any argument
ALLOCATES = (
    KEEPS_ZERO | MOVES_ZERO | BINARY | REDUCTIONS | POOLS | JOINS | {"softmax", "log_softmax", "masked_fill"}
)

MAY_BE_SAME_MODULES = ("Dropout", "Dropout1d", "Identity")  # in evaluation they hand their argument back


def name_of(target: Any) -> str:
    """relu, for torch.relu, F.relu and the method."""
    return target if isinstance(target, str) else getattr(target, "__name__", str(target))
