"""One model, several processes: who keeps it alike must know all its parameters, and noise is each rank's own."""

from __future__ import annotations

import gc
import itertools
import json
import sys
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gatewise.sparsify.layers import Posterior
from gatewise.sparsify.watch import EVERY, is_capturing

FIRST = (1, 10)  # updates at which ranks are compared early; then every hundredth
TOLERANCE = 1e-5  # of a norm: ranks of one kind agree to the bit, others round sums otherwise
APART = 0x9E3779B97F4A7C15  # odd and large: seeds of ranks differ in many bits
made = itertools.count()


def rank_and_size() -> tuple[int, int]:
    if not dist.is_available() or not dist.is_initialized():
        return 0, 1
    return dist.get_rank(), dist.get_world_size()


# Wrapped too early.


def check_not_wrapped(
    model: nn.Module, layers: Iterable[nn.Module], call: str = "gatewise.Variational(model, ...)"
) -> None:
    """DistributedDataParallel and FSDP take the parameters once, when they wrap; those that are added drift apart."""
    kinds: tuple[type, ...] = (nn.parallel.DistributedDataParallel,)
    if (fsdp := sys.modules.get("torch.distributed.fsdp")) is not None:
        kinds += (fsdp.FullyShardedDataParallel, fsdp.FSDPModule)
    mine = {id(layer) for layer in layers}

    def holders() -> list[str]:
        known = [m for m in model.modules() if isinstance(m, kinds)]
        if rank_and_size()[1] > 1:  # `ddp.module` does not say who wrapped it: look for who is there
            known += [o for o in gc.get_objects() if issubclass(type(o), kinds)]
        return [type(m).__name__ for m in known if any(id(part) in mine for part in m.modules())]

    if holders():
        gc.collect()  # one that was thrown away may not be gone yet
        if found := holders():
            raise ValueError(
                f"The model is wrapped in {found[0]}, which does not synchronise parameters that are added now: the "
                f"ranks would drift apart. Convert first, then wrap it: {call}, then {found[0]}(model)."
            )


# Drifting apart.


class Agreement:
    """Whether the parameters that a sparsifier added are the same on all ranks, where all others are.

    Ranks put sums over their parameters where the others can read them; nobody waits. Those whose own parameters
    differ are runs of their own, which happen to share a process group.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model, self.number = model, next(made)

    def check(self, updates: int) -> None:
        rank, size = rank_and_size()
        if size == 1 or is_capturing() or (updates not in FIRST and updates % EVERY):
            return
        if dist.get_backend() == "mpi":  # has no place where ranks could leave a word
            return
        now = sums(self.model)
        store = dist.distributed_c10d._get_default_store()
        key = f"gatewise/{self.number}/"
        store.set(f"{key}{rank}", json.dumps({"updates": updates, "sums": now}))
        for other in (r for r in range(size) if r != rank and store.check([f"{key}{r}"])):
            said = json.loads(store.get(f"{key}{other}"))
            if said["updates"] != updates or said["sums"].keys() != now.keys():
                continue
            apart = [name for name in now if differ(now[name], said["sums"][name])]
            if apart and all(Posterior.is_extra(name.rpartition(".")[2]) for name in apart):
                raise RuntimeError(
                    f"After update {updates} ranks {rank} and {other} do not have the same model: "
                    f"{', '.join(apart[:3])}{' and others' if len(apart) > 3 else ''} differ, all else is the same. "
                    "Whoever averages the gradients does not know of them: wrap the model, or list its parameters, "
                    "after gatewise.Variational(model, ...)."
                )


@torch.no_grad()
def sums(model: nn.Module) -> dict[str, list[float]]:
    """Of every parameter that trains, sum p_i cos(i) and the norm: which numbers it has, and in which order."""
    found = {}
    for name, p in model.named_parameters():
        if p.requires_grad:
            flat = p.detach().flatten().float()
            mixed = (flat * torch.arange(len(flat), device=p.device).cos()).sum()
            found[name] = [mixed.item(), torch.linalg.vector_norm(flat).item()]
    return found


def differ(a: list[float], b: list[float]) -> bool:
    return any(abs(x - y) > TOLERANCE * max(a[1], b[1]) for x, y in zip(a, b))


# Noise.


def enter_own_noise(device: torch.device) -> Tensor | None:
    """Leave the random numbers that ranks with equal seeds have in common; the way back, on the CPU.

    There the rank goes on from a seed that one common number and its rank make: outside forward() the common numbers
    stay common, as a shuffle needs them. A GPU's, which a captured graph must not set, are moved on by the rank.
    """
    rank, size = rank_and_size()
    if size == 1:
        return None
    if device.type == "cuda":
        for _ in range(rank):
            torch.rand(1, device=device)
        return None
    number = int(torch.randint(2**62, ()))
    common = torch.get_rng_state()
    torch.default_generator.manual_seed((number + rank * APART) % 2**63)
    return common
