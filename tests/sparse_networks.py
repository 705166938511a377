"""Random sparse networks: every shape of model that compress() promises to keep exact, with random zeros."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import strategies as st
from networks import OURS, TORCH, pair
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import gatewise as gw
from gatewise.nn.lookup import cell_of, current, places_of
from gatewise.sparsify.layers import LOG_SIGMA, Posterior

METHODS = ("zeros", "prune", "lasso", "W", "W+N", "W+G+N")
SHAPES = (
    "stream last h_n pool stack-of-two linear-first bare packed masked two-readers seq2seq twice residual "
    "attention norm shared"
).split()


class Drawn(nn.Module):
    """One of the SHAPES. Branches depend on attributes only, so that forward() can be traced."""

    def __init__(
        self,
        shape: str,
        cell: str,
        *,
        size: int,
        hidden: int,
        second: int,
        layers: int,
        bidirectional: bool,
        bias: bool,
        batch_first: bool,
        gate_activation: str,
        words: int,
        tied: bool,
        between: str,
        pool: str,
        own: bool,
    ) -> None:
        super().__init__()
        self.shape, self.between, self.pool, self.time = shape, between, pool, 1 if batch_first else 0
        self.words, self.batch_first = words, batch_first
        width = hidden * (2 if bidirectional else 1)
        options = {"bias": bias, "batch_first": batch_first, "bidirectional": bidirectional}
        own = own or gate_activation != "sigmoid" or shape == "masked"
        extra = {"gate_activation": gate_activation} if own else {}
        classes = OURS if own else TORCH
        self.emb = nn.Embedding(words, size) if words else None
        if shape == "linear-first":
            self.first = nn.Linear(size, second, bias=bias)
            size = second
        self.rnn = classes[cell](size, hidden, layers, **options, **extra)
        if shape == "stack-of-two":
            self.rnn2 = classes[cell](width, second, 1, **options, **extra)
            width = second * (2 if bidirectional else 1)
        elif shape == "seq2seq":
            self.rnn2 = classes[cell](size, hidden, layers, **options, **extra)
        elif shape == "residual":
            self.rnn2 = classes[cell](width, hidden, 1, **options, **extra)
        elif shape == "attention":
            self.attn = nn.Linear(width, 1)
        elif shape == "norm":
            self.norm = nn.LayerNorm(width)
        if shape != "bare":
            outputs = words if tied and words else 3
            self.fc = nn.Linear(width, outputs, bias=bias)
            if shape == "two-readers":
                self.fc2 = nn.Linear(width, 2)
            if tied and words and width == self.rnn.input_size and shape != "linear-first":
                self.fc.weight = self.emb.weight

    def forward(self, x: Any, state: Any = None, extra: Any = None) -> Any:
        if self.emb is not None:
            x = self.emb(x)
        if self.shape == "linear-first":
            x = self.squash(self.first(x))
        if self.shape == "packed":
            x = pack_padded_sequence(x, extra, batch_first=self.batch_first, enforce_sorted=False)
        if self.shape == "masked":
            out, last = pair(self.rnn(x, state, mask=extra))
        else:
            out, last = pair(self.rnn(x, state))
        if self.shape == "bare":
            return out, last
        if self.shape == "shared":
            return self.fc(out) + self.fc(x)
        if self.shape == "packed":
            out, _ = pair(pad_packed_sequence(out, batch_first=self.batch_first))
        elif self.shape == "last":
            return self.fc(out[:, -1] if self.batch_first else out[-1])
        elif self.shape == "h_n":
            h = (
                last[0]
                if isinstance(self.rnn, nn.LSTM | gw.nn.LSTM) or cell_of(self.rnn).n_states == 2
                else last
            )
            return self.fc(torch.cat([h[-2], h[-1]], -1) if self.rnn.bidirectional else h[-1])
        elif self.shape == "pool":
            out = self.squash(out)
            return self.fc(out.mean(self.time) if self.pool == "mean" else out.max(self.time)[0])
        elif self.shape == "stack-of-two":
            out, _ = pair(self.rnn2(self.squash(out)))
        elif self.shape == "seq2seq":
            out, _ = pair(self.rnn2(x, last))
            return self.fc(out)
        elif self.shape == "twice":
            out, last = pair(self.rnn(x, last))
        elif self.shape == "residual":
            again, _ = pair(self.rnn2(out))
            out = again + out
        elif self.shape == "attention":
            out = (out * torch.softmax(self.attn(out), self.time)).sum(self.time)
            return self.fc(out)
        elif self.shape == "norm":
            out = self.norm(out)
        answer = self.fc(self.squash(out))
        if self.shape == "two-readers":
            answer = torch.cat([answer, self.fc2(out)], -1)
        return answer, last

    def squash(self, x: Tensor) -> Tensor:
        if self.between == "relu":
            return torch.relu(x)
        if self.between == "sigmoid":
            return torch.sigmoid(x)
        return nn.functional.dropout(x, 0.5, self.training) if self.between == "dropout" else x


@dataclass
class Case:
    """A network, the arguments of its forward(), and how it was drawn."""

    model: nn.Module
    inputs: tuple[Any, ...]
    method: str
    seed: int
    options: dict[str, Any] = field(default_factory=dict)

    def fresh(self) -> nn.Module:
        """The class of the network built anew, with other weights, for load(into=)."""
        made = architecture(self.method, self.options)
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.fill_(7.0)
        return made

    def __repr__(self) -> str:
        said = ", ".join(f"{key}={value!r}" for key, value in self.options.items())
        return f"build(method={self.method!r}, seed={self.seed}, options=dict({said}))"


@st.composite
def sparse_networks(draw: Any, cell: str | None = None, method: str | None = None, **fixed: Any) -> Case:
    """A network of any of the SHAPES, made sparse by any of the METHODS, with inputs."""
    options: dict[str, Any] = {
        "shape": draw(st.sampled_from(SHAPES)),
        "cell": cell or draw(st.sampled_from(["LSTM", "GRU"])),
        "size": draw(st.integers(1, 9)),
        "hidden": draw(st.integers(1, 9)),
        "second": draw(st.integers(1, 5)),
        "layers": draw(st.integers(1, 3)),
        "bidirectional": draw(st.booleans()),
        "bias": draw(st.sampled_from([True, True, False])),
        "batch_first": draw(st.booleans()),
        "gate_activation": draw(st.sampled_from(["sigmoid", "sigmoid", "hard_sigmoid"])),
        "words": draw(st.sampled_from([0, 0, 2, 7])),
        "tied": draw(st.booleans()),
        "between": draw(st.sampled_from(["none", "relu", "sigmoid", "dropout"])),
        "pool": draw(st.sampled_from(["mean", "max"])),
        "own": draw(st.booleans()),
        "density": draw(st.sampled_from([0.0, 0.1, 0.3, 0.6, 1.0])),
        "dead": draw(st.sampled_from([0.0, 0.3, 0.7, 1.0])),
        "constant": draw(st.sampled_from([0.0, 0.3, 0.8, 1.0])),
        "zero_layer": draw(st.sampled_from([False, False, False, True])),
        "steps": draw(st.integers(1, 5)),
        "batch": draw(st.integers(1, 3)),
        "unbatched": draw(st.sampled_from([False, False, False, True])),
        "state": draw(st.booleans()),
    } | fixed  # fmt: skip
    return build(method or draw(st.sampled_from(METHODS)), draw(st.integers(0, 2**31)), options)


def build(method: str, seed: int, options: dict[str, Any]) -> Case:
    """The network and inputs of one draw."""
    o = options
    generator = torch.Generator().manual_seed(seed)
    model = architecture(method, o)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
            if parameter.dim() == 1:
                parameter.mul_(torch.rand(parameter.shape, generator=generator) < 0.8)
    if method in ("W", "W+N", "W+G+N"):
        make_variational(model, method, o, generator)
    elif method == "prune":
        make_pruned(model, o, generator)
    else:
        cut(model, o, generator)
    if method == "lasso":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # behind a norm the readers are not known, and it says so
            gw.GroupLasso(model, levels="W", l1=1e-5, threshold=0.5).step()
    root = model.rnn if o["shape"] == "bare" and not o["words"] else model
    return Case(root, draw_inputs(model, root, o, generator), method, seed, options)


def architecture(method: str, options: dict[str, Any]) -> Drawn:
    o = dict(options)
    if (
        o["tied"]
        and o["words"]
        and (o["shape"] in ("stream", "two-readers") or method not in ("zeros", "prune"))
    ):
        o["size"] = o["hidden"] * (2 if o["bidirectional"] else 1)
    if o["shape"] == "shared":  # fc reads the layer's output and its input
        o["size"] = o["hidden"] * (2 if o["bidirectional"] else 1)
    structural = ("density", "dead", "constant", "zero_layer", "steps", "batch", "unbatched", "state")
    return Drawn(**{key: value for key, value in o.items() if key not in structural}).eval()


def masks_for(model: Drawn, o: dict[str, Any], generator: torch.Generator) -> dict[str, Tensor]:
    """Keep-masks of every matrix: random zeros, rows of constant gates, columns of neurons that nobody reads."""

    def coin(chance: float, *shape: int) -> Tensor:
        return torch.rand(shape, generator=generator) < chance

    matrices = {name: p for name, p in model.named_parameters(remove_duplicate=True) if p.dim() == 2}
    keep = {name: coin(o["density"], *p.shape) for name, p in matrices.items()}
    for name, mask in keep.items():
        if "weight_ih" in name:
            mask[coin(o["constant"], len(mask))] = False
            keep[name.replace("weight_ih", "weight_hh")][(~mask).all(1) & coin(0.8, len(mask))] = False
        if coin(0.2, 1):
            mask[:, coin(0.5, mask.shape[1])] = False
        if name == "emb.weight":
            mask[coin(0.3, len(mask))] = False
    for module_name, module in model.named_modules():
        if cell_of(module) is None or not hasattr(module, "num_layers"):
            continue
        hidden = module.hidden_size
        for layer, direction in places_of(module):
            end = f"_l{layer}" + ("_reverse" if direction else "")
            dead = coin(o["dead"], hidden)
            keep[f"{module_name}.weight_hh{end}"][:, dead] = False
            columns = dead.nonzero().flatten() + direction * hidden
            above = [f"{module_name}.weight_ih_l{layer + 1}{side}" for side in ("", "_reverse")]
            if layer == module.num_layers - 1:
                above = [
                    "fc.weight",
                    "fc2.weight",
                    "attn.weight",
                    "rnn2.weight_ih_l0",
                    "rnn2.weight_ih_l0_reverse",
                ]
                above = above if module_name == "rnn" else above[:1]
            for reader in above:
                if reader in keep and len(columns) and int(columns.max()) < keep[reader].shape[1]:
                    keep[reader][:, columns] = False
    if o["zero_layer"] and keep:
        victim = list(keep)[int(torch.randint(len(keep), (), generator=generator))]
        keep[victim][:] = False
    return keep


def cut(model: Drawn, o: dict[str, Any], generator: torch.Generator) -> None:
    with torch.no_grad():
        for name, mask in masks_for(model, o, generator).items():
            model.get_parameter(name).mul_(mask)


def make_pruned(model: Drawn, o: dict[str, Any], generator: torch.Generator) -> None:
    masks = masks_for(model, o, generator)
    for name, mask in masks.items():
        module, _, attribute = name.rpartition(".")
        layer = model.get_submodule(module)
        if isinstance(layer, gw.nn.Recurrent):
            with torch.no_grad():
                getattr(layer, attribute).mul_(mask)
        else:
            prune.custom_from_mask(layer, attribute, mask)


def make_variational(model: Drawn, levels: str, o: dict[str, Any], generator: torch.Generator) -> None:
    """Posteriors whose signal-to-noise ratio is far from the threshold, on either side; z of either sign."""
    masks = masks_for(model, o, generator)
    vocabulary = ["emb"] if model.emb is not None and torch.rand((), generator=generator) < 0.7 else []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # embeddings whose readers are not known get no z_x, and say so
        gw.Variational(model, levels, n_train=10, vocabulary=vocabulary, noise="batch")
    with torch.no_grad():
        for module_name, module in model.named_modules():
            if not isinstance(module, Posterior):
                continue
            for name in module.posterior_names():
                mean, log_sigma = getattr(module, name), getattr(module, name + LOG_SIGMA)
                keep = masks.get(f"{module_name}.{name}")
                if "scale" in name:
                    chance = 0.75 if o["dead"] < 1 else 0.3
                    keep = torch.rand(mean.shape, generator=generator) < chance
                    size = 0.4 + torch.rand(mean.shape, generator=generator)
                    mean.copy_(size * torch.sign(torch.randn(mean.shape, generator=generator)))
                if keep is None:
                    continue  # a shared parameter, under its first name
                log_sigma.copy_(torch.where(keep, -9.0, 9.0))
                mean.mul_(keep | (torch.rand(mean.shape, generator=generator) < 0.7))  # some means exactly 0


def draw_inputs(
    model: Drawn, root: nn.Module, o: dict[str, Any], generator: torch.Generator
) -> tuple[Any, ...]:
    steps, batch = o["steps"], o["batch"]
    plain = o["shape"] in ("stream", "bare", "stack-of-two", "two-readers", "residual", "norm")
    unbatched = o["unbatched"] and plain
    shape = (steps,) if unbatched else (batch, steps) if model.batch_first else (steps, batch)
    if model.words and root is model:
        x = torch.randint(0, model.words, shape, generator=generator)
    else:
        width = model.first.in_features if hasattr(model, "first") else model.rnn.input_size
        x = torch.randn(*shape, width, generator=generator)
    state = None
    if o["state"]:
        places = len(list(places_of(model.rnn)))
        wide = (places, model.rnn.hidden_size) if unbatched else (places, batch, model.rnn.hidden_size)
        state = torch.randn(wide, generator=generator)
        if cell_of(model.rnn).n_states == 2:  # type: ignore[union-attr]
            state = (state, torch.randn(wide, generator=generator))
    if root is not model:
        return (x, state)
    extra = None
    if model.shape == "packed":
        extra = torch.randint(1, steps + 1, (batch,), generator=generator)
        extra[0] = steps
    elif model.shape == "masked":
        extra = torch.rand(shape, generator=generator) < 0.7
    return (x, state, extra)


def weights_now(model: nn.Module) -> dict[str, Tensor]:
    """Copies of every parameter and buffer, pruned ones as they act."""
    found = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for name, module in model.named_modules():
        for attribute in ("weight", "weight_ih_l0"):
            tensor = current(module, attribute)
            if tensor is not None:
                found[f"{name}.{attribute} as it acts"] = tensor.detach().clone()
    return found
