"""Proximal steps of the lasso penalties: after an update everything is shrunk in closed form.

    weights  w = sign(w) max(|w| - eta l1, 0)
    gates    w = w max(1 - eta lambda_g / ||w_g||, 0), for the rows of a gate
    neurons  the same for the columns that read a neuron

Each is the exact minimum of ||x - w||^2 / (2 eta) + penalty(x). Gates and neurons share weights; they are taken one
after the other, so that both can reach exactly zero. At W+N neurons share weights among themselves: all norms are
taken first, and a weight is shrunk for each of its groups.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gatewise.sparsify.dispatch import matrix_stats
from gatewise.sparsify.plan import Plan


def soften_(w: Tensor, by: Tensor) -> None:
    """w = sign(w) max(|w| - by, 0), in place; `by` is a tensor, so that a captured graph sees it change."""
    w.sub_(torch.maximum(torch.minimum(w, by), -by))


def shrink_(
    plan: Plan,
    matrices: Sequence[Tensor],
    frozen: Sequence[bool],
    by: Tensor,  # (groups,) eta lambda_g; 0 for groups that are not to be shrunk now
) -> None:
    """w_g = w_g max(1 - by_g / ||w_g||, 0) for all groups at once, in place."""
    rows, columns, _ = matrix_stats(matrices)
    norms = plan.summed(rows, columns).sqrt()
    # A group at zero stays there: its norm is below every threshold but 0, where 1 - 0 / tiny lets it be.
    kept = (1 - by.to(norms.dtype) / norms.clamp_min(torch.finfo(norms.dtype).tiny)).clamp_min(0)
    factors = torch.cat([kept, kept.new_ones(1)])[plan.members].prod(1)
    of_lines = factors.split([size for w in matrices for size in w.shape])
    for w, fixed, row, column in zip(matrices, frozen, of_lines[::2], of_lines[1::2]):
        if not fixed:
            w.mul_(row[:, None].to(w.dtype)).mul_(column.to(w.dtype))


def rate_of(optimizer: torch.optim.Optimizer | None, matrices: dict[str, Tensor]) -> Tensor | float:
    """The learning rate with which all the matrices were updated."""
    if optimizer is None:
        raise ValueError(
            'update="proximal" shrinks by the learning rate times lambda: call step(optimizer), after its own step().'
        )
    rates: dict[int, Tensor | float] = {
        id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]
    }
    found = {name: rates.get(id(p)) for name, p in matrices.items() if p.requires_grad}
    missing = [name for name, rate in found.items() if rate is None]
    if missing:
        raise ValueError(
            f"{missing[0]}: the optimizer does not have it. Make it after GroupLasso, or freeze it."
        )
    first, *others = found.items()
    for name, rate in others:
        if rate is not first[1] and rate != first[1]:
            raise ValueError(
                f"{first[0]} has the learning rate {first[1]}, {name} has {rate}: groups that reach over both cannot "
                'be shrunk. Give them the same, or use update="subgradient".'
            )
    assert first[1] is not None
    return first[1]
