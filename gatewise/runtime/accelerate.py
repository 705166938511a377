"""gw.accelerate(small): any model, with its recurrent layers run by the C kernels."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from gatewise.compact import CompactRecurrent, compacted
from gatewise.layout import State
from gatewise.nn.forms import stand_in
from gatewise.nn.lookup import replace_module
from gatewise.runtime.bindings import Network, check_threads, native
from gatewise.runtime.narrow import Level, Narrower, check_cpu_float32
from gatewise.runtime.stages import arrange


def accelerate(model: nn.Module, *, threads: int = 1) -> nn.Module:
    """The same model with engine-backed recurrent layers of the same call: CPU, float32, inference only.

    Single-step cells, whose loop is in forward(), stay in torch. A model that is not compact, or only in part, is
    compressed first. The argument is not changed; the answer is in eval mode and no parameter of it asks for a
    gradient.
    """
    check_threads(threads)
    native()  # a missing library is said here, not in the first forward pass
    small = compacted(model)
    fast = (copy.deepcopy(model) if small is model else small).eval().requires_grad_(False)
    check_cpu_float32(fast)
    for name, module in list(fast.named_modules()):
        if isinstance(module, CompactRecurrent):
            new = EngineRecurrent(module, threads, name).eval()
            if not name:
                return stand_in(new, fast)
            replace_module(fast, module, new)
    return fast


BUILT = ("network", "columns", "read", "read_at")


class EngineRecurrent(CompactRecurrent):
    """A compact stack whose sequences run in C; states and outputs as `CompactRecurrent` has them.

    The kernels read a copy of the weights. It is made again when a parameter is replaced or changed as torch counts
    changes; `refresh()` makes it after writing through `.data` or NumPy, which torch does not count. Saved and loaded
    it is the compact stack, to be accelerated again.
    """

    saved_as = CompactRecurrent

    def __init__(self, compact: CompactRecurrent, threads: int, name: str = "") -> None:
        super().__init__(compact.cell, list(compact.layers), compact.options())  # type: ignore[arg-type]
        self.threads = threads
        self.register_load_state_dict_post_hook(rebuild)  # type: ignore[no-untyped-call]
        self.refresh(name)

    def refresh(self, name: str = "") -> None:
        """Copy the weights for the kernels; what cannot be arranged is refused by its name."""
        narrower = Narrower(self.input_size)
        narrower.recurrent(name, self)
        levels = [link for link in narrower.links if isinstance(link, Level)]
        self.network = Network(
            [[arrange(level, r, None) for r in level.directions] for level in levels], self.input_size
        )
        self.columns = torch.from_numpy(narrower.channels.kept)
        self.read = self._weights()
        self.read_at = versions(self.read)

    def _has_changed(self) -> bool:
        """Whether a weight was replaced, given other memory, or written as torch counts it."""
        weights = self._weights()
        return any(a is not b for a, b in zip(weights, self.read)) or versions(weights) != self.read_at

    def _weights(self) -> list[Tensor]:
        """Parameters and z_h, without a walk through the modules: every call asks."""
        parts = ((*layer._parameters.values(), layer._buffers["neuron_scale"]) for layer in self.layers)
        return [part for parts_of_layer in parts for part in parts_of_layer if part is not None]

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in BUILT}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.refresh()

    def forward(self, input: Any, hx: Any = None, *, mask: Tensor | None = None) -> Any:
        state = () if hx is None else (hx,) if isinstance(hx, Tensor) else tuple(hx)
        for x in (input.data if isinstance(input, PackedSequence) else input, *state):
            if torch.is_grad_enabled() and x.requires_grad:
                raise RuntimeError(
                    "An accelerated layer has no gradient; use the compact model, or torch.no_grad()."
                )
            if x.device.type != "cpu" or x.dtype != torch.float32:
                raise ValueError(
                    f"An accelerated layer computes in float32 on the CPU, got {x.dtype} on {x.device}."
                )
        if self.training and self.dropout:
            raise RuntimeError("An accelerated layer has no dropout; call eval() first.")
        with torch.no_grad():
            return super().forward(input, hx, mask=mask)

    def _run(
        self, x: Tensor, state: State, sizes: Tensor | None, order: Tensor | None, mask: Tensor | None
    ) -> tuple[Tensor, State]:
        if mask is not None or not x.numel():  # the kernels know lengths, not masks, and no empty batch
            return super()._run(x, state, sizes, order, mask)
        if self._has_changed():
            self.refresh()
        lengths = None
        if sizes is not None:
            x, lengths = pad_packed_sequence(PackedSequence(x, sizes))
        steps, batch = x.shape[:2]
        memory = self.network.zero_state(batch)
        views = self.network.states(memory, batch)
        layers = [self.layer(*place) for place in self.places()]
        for place, (layer, view) in enumerate(zip(layers, views)):
            for part, given in zip(view, layer.enter(tuple(part[place] for part in state))):
                part[:] = given.numpy()
        y = np.empty((steps, batch, self.network.width), np.float32)
        sizes32 = None if lengths is None else lengths.to(torch.int32).numpy()
        self.network.run(
            x.detach().contiguous().numpy(), memory, y, steps, batch, False, sizes32, self.threads
        )
        whole = torch.zeros(steps, batch, self.hidden_size * self.num_directions)
        whole[:, :, self.columns] = torch.from_numpy(y)
        lasts = [
            layer.leave(tuple(torch.from_numpy(part.copy()) for part in view))
            for layer, view in zip(layers, views)
        ]
        if lengths is not None:
            whole = pack_padded_sequence(whole, lengths).data
        return whole, tuple(torch.stack(parts) for parts in zip(*lasts))


def rebuild(layer: EngineRecurrent, _: Any) -> None:
    """After load_state_dict() the kernels read the new weights."""
    layer.refresh()


def versions(tensors: list[Tensor]) -> list[tuple[int, int, torch.Size]]:
    """Where each lies, and how often torch knows it to have been changed in place."""
    return [(t.data_ptr(), t._version, t.shape) for t in tensors]
