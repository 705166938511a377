"""Random sparse chains: what engine, ONNX and C must run as the compact model does."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from networks import pair
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import gatewise as gw
from gatewise.nn.lookup import cell_of
from gatewise.runtime.chain import find_chain
from gatewise.runtime.chained import Chain, ChainError
from gatewise.runtime.narrow import recorded
from gatewise.sparsify.layers import LOG_SIGMA, Posterior

OTHER = {"LSTM": "GRU", "GRU": "LSTM"}
TAKES = ["all", "all", "last", "state"]
POOLS = ["mean", "max", "sum"]
POOLED_ANSWERS = {f"{pool} of answers": pool for pool in POOLS}
NORMED = ["input", "between", "head", "answer"]
CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-5}


class ChainModel(nn.Module):
    """[embedding] [linear, relu] recurrent [function] [recurrent of the other cell] [last or pool] [linear]
    [function] [pool], with normalisations in one place or all of NORMED."""

    def __init__(self, o: dict[str, Any]) -> None:
        super().__init__()
        self.o, directions = o, 2 if o["bidirectional"] else 1
        options = {"bias": o["bias"], "batch_first": o["batch_first"], "bidirectional": o["bidirectional"]}
        options["gate_activation"] = o["gate_activation"]
        size = o["size"]
        self.emb = nn.Embedding(o["words"], size) if o["words"] else None
        self.first = nn.Linear(size, 3, bias=o["bias"]) if o["first"] else None
        size = 3 if o["first"] else size
        self.rnn = getattr(gw.nn, o["cell"])(size, o["hidden"], o["layers"], **options)
        width = o["hidden"] * directions
        self.rnn2 = getattr(gw.nn, OTHER[o["cell"]])(width, 4, **options) if o["second"] else None
        width = 4 * directions if o["second"] else width
        outputs = 1 if o["squeezed"] else 3
        self.fc = nn.Linear(width, outputs, bias=o["bias"]) if o["head"] else None
        self.time = 1 if o["batch_first"] else 0
        widths = {"input": o["size"], "between": o["hidden"] * directions, "head": width}
        widths["answer"] = outputs if o["head"] else width
        places = [place for place in NORMED if o["norm"] and o["normed"] in (place, "everywhere")]
        self.norms = nn.ModuleDict({place: self.make_norm(widths[place]) for place in places})

    def make_norm(self, width: int) -> nn.Module:
        if self.o["norm"] == "batch":
            return nn.BatchNorm1d(width, eps=0.01, affine=self.o["bias"])
        # Channels that are almost the same differ by their rounding, and a small eps makes that large.
        return nn.LayerNorm(width, eps=0.1, elementwise_affine=self.o["bias"])

    def normed(self, x: Tensor, place: str) -> Tensor:
        if place not in self.norms:
            return x
        one = place in ("head", "answer") and self.o["take"] not in ("all", *POOLED_ANSWERS)
        if one or self.o["norm"] == "layer":
            return self.norms[place](x)
        return self.norms[place](x.transpose(1, 2)).transpose(1, 2)

    def forward(self, x: Tensor, state: Any = None) -> Any:
        x = self.read(x)
        x, last = pair(self.rnn(x, state))
        h = last[0] if cell_of(self.rnn).n_states == 2 else last
        x = self.function(self.normed(x, "between"), self.o["between"])
        if self.rnn2 is not None:
            x, last2 = pair(self.rnn2(x))
            h = last2[0] if cell_of(self.rnn2).n_states == 2 else last2
        if self.o["take"] == "last":
            x = x[:, -1] if self.time else x[-1]
        elif self.o["take"] == "state":
            x = self.joined(h)
        elif self.o["take"] in POOLS:
            x = self.pool(x, self.o["take"])
        return self.answer(x, last)

    def pool(self, x: Tensor, name: str) -> Tensor:
        return x.max(self.time)[0] if name == "max" else getattr(x, name)(self.time)

    def read(self, x: Tensor) -> Tensor:
        x = self.normed(self.emb(x) if self.emb is not None else x, "input")
        return torch.relu(self.first(x)) if self.first is not None else x

    def joined(self, h: Tensor) -> Tensor:
        return torch.cat([h[-2], h[-1]], 1) if self.rnn.bidirectional else h[-1]

    def answer(self, x: Tensor, last: Any) -> Any:
        x = self.normed(x, "head")
        x = self.normed(self.fc(x) if self.fc is not None else x, "answer")
        x = self.function(x, self.o["scores"])
        x = x.squeeze(-1) if self.o["squeezed"] and self.fc is not None else x
        if self.o["take"] in POOLED_ANSWERS:
            x = self.pool(x, POOLED_ANSWERS[self.o["take"]])
        if self.o["take"] != "all":
            return x
        if self.o["layout"] == "swapped" and not (self.o["squeezed"] and self.fc is not None):
            x = x.transpose(0, 1)
        elif self.o["layout"] == "rows" and not (self.o["squeezed"] and self.fc is not None):
            x = x.reshape(-1, x.size(-1))
        return x, last

    @staticmethod
    def function(x: Tensor, name: str) -> Tensor:
        if name in ("softmax", "log_softmax"):
            return getattr(torch, name)(x, -1)
        return getattr(torch, name)(x) if name else x


class PackedModel(ChainModel):
    """The same with sequences that are packed and, but for last states, padded again: "whole", as x is, or "cut".
    Pools are over the steps of each."""

    def forward(self, x: Tensor, lengths: Tensor, state: Any = None) -> Any:
        x = self.read(x)
        total = x.size(self.time) if self.o["packs"] == "whole" else None
        packed, last = pair(self.rnn(self.pack(x, lengths), state))
        h = last[0] if cell_of(self.rnn).n_states == 2 else last
        if self.rnn2 is not None:
            x = self.function(self.normed(self.pad(packed, total), "between"), self.o["between"])
            packed, last2 = pair(self.rnn2(self.pack(x, lengths.cpu())))
            h = last2[0] if cell_of(self.rnn2).n_states == 2 else last2
        if self.o["take"] == "state":
            return self.answer(self.joined(h), last)
        if self.o["take"] == "max":
            return self.answer(self.pad(packed, total, float("-inf")).amax(self.time), last)
        x = self.pad(packed, total)
        if self.o["take"] == "mean":
            x = x.sum(self.time) / lengths.unsqueeze(1)
        elif self.o["take"] == "sum":
            x = x.sum(self.time)
        elif self.o["take"] == "last":
            batch, ends = torch.arange(x.size(1 - self.time)), lengths - 1
            x = x[batch, ends] if self.time else x[ends, batch]
        return self.answer(x, last)

    def pack(self, x: Tensor, lengths: Tensor) -> Any:
        return pack_padded_sequence(x, lengths, bool(self.time), enforce_sorted=False)

    def pad(self, x: Any, total: Any, filler: float = 0.0) -> Tensor:
        return pad_packed_sequence(x, bool(self.time), filler, total)[0]


@dataclass
class Case:
    """A masked network, its compact form, an input and an initial state."""

    model: ChainModel
    small: nn.Module
    x: Tensor
    state: Any
    seed: int

    def __repr__(self) -> str:
        return f"build({self.seed}, {self.model.o!r})"

    @property
    def states(self) -> tuple[Tensor, ...]:
        return self.state if isinstance(self.state, tuple) else (self.state,)

    @property
    def plain(self) -> bool:
        """Whether the answer has its time axis where the input has it."""
        o = self.model.o
        return o["take"] == "all" and (o["layout"] == "same" or (o["squeezed"] and o["head"]))

    def answer(self, x: Tensor, state: Any = None, *, masked: bool = False) -> Tensor:
        with torch.no_grad():
            answer = (self.model if masked else self.small)(x, state)
        return answer[0] if isinstance(answer, tuple) else answer

    def one_by_one(self, lengths: Tensor, state: Any = None) -> list[Tensor]:
        """The compact model on each sequence alone, cut to its length."""
        answers = []
        batch = 0 if self.model.time else 1
        for b, length in enumerate(lengths.tolist()):
            x = self.x.narrow(batch, b, 1).narrow(1 - batch, 0, length)
            own = None if state is None else tuple(part[:, b : b + 1].contiguous() for part in self.states)
            answers.append(self.answer(x, own if own is None or len(own) == 2 else own[0]))
        return answers


@st.composite
def chains(draw: Any, **fixed: Any) -> Case:
    options: dict[str, Any] = {
        "cell": draw(st.sampled_from(["LSTM", "GRU"])),
        "size": draw(st.integers(1, 6)),
        "hidden": draw(st.integers(1, 7)),
        "layers": draw(st.integers(1, 3)),
        "bidirectional": draw(st.booleans()),
        "bias": draw(st.sampled_from([True, True, False])),
        "batch_first": draw(st.booleans()),
        "gate_activation": draw(st.sampled_from(["sigmoid", "hard_sigmoid"])),
        "words": draw(st.sampled_from([0, 5])),
        "first": draw(st.sampled_from([False, False, True])),
        "second": draw(st.sampled_from([False, False, True])),
        "between": draw(st.sampled_from(["", "", "relu", "tanh", "sigmoid"])),
        "take": draw(st.sampled_from([*TAKES, *POOLS, *([] if "packs" in fixed else POOLED_ANSWERS)])),
        "head": draw(st.sampled_from([True, True, False])),
        "squeezed": draw(st.sampled_from([False, False, True])),
        "scores": draw(st.sampled_from(["", "sigmoid", "softmax", "log_softmax"])),
        "layout": draw(st.sampled_from(["same", "swapped", "rows"])),
        "norm": draw(st.sampled_from(["", "", "batch", "layer"])),
        "normed": draw(st.sampled_from([*NORMED, "everywhere"])),
        "bayes": draw(st.booleans()),
        "density": draw(st.sampled_from([0.0, 0.2, 0.5, 1.0])),
        "dead": draw(st.sampled_from([0.0, 0.5, 1.0])),
        "steps": draw(st.integers(1, 5)),
        "batch": draw(st.integers(1, 3)),
    } | fixed  # fmt: skip
    return build(draw(st.integers(0, 2**31)), options)


def packed_chains(**fixed: Any) -> st.SearchStrategy[Case]:
    return st.one_of([chains(packs=packs, steps=5, batch=3, **fixed) for packs in ("whole", "cut")])


# Of the sequences of packed_chains().
three_lengths = st.lists(st.integers(1, 5), min_size=3, max_size=3).map(torch.tensor)

PLAIN: dict[str, Any] = {
    "cell": "LSTM", "size": 3, "hidden": 4, "layers": 2, "bidirectional": False, "bias": True, "batch_first": False,
    "gate_activation": "sigmoid", "words": 5, "first": False, "second": False, "between": "", "take": "all",
    "head": True, "squeezed": False, "scores": "", "layout": "same", "bayes": False, "density": 1.0, "dead": 0.0,
    "steps": 4, "batch": 2, "norm": "", "normed": "everywhere",
}  # fmt: skip
WORDS = PLAIN | {"density": 0.7, "dead": 0.2}
VECTORS = WORDS | {"words": 0}


def build(seed: int, options: dict[str, Any]) -> Case:
    generator = torch.Generator().manual_seed(seed)
    model = (PackedModel if options.get("packs") else ChainModel)(options).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
        for name, statistic in model.norms.named_buffers():
            if name.endswith("running_mean"):
                statistic.copy_(torch.randn(statistic.shape, generator=generator))
            elif name.endswith("running_var"):
                statistic.copy_(0.05 + torch.rand(statistic.shape, generator=generator))
    (make_bayesian if options["bayes"] else cut)(model, options, generator)
    steps, batch = options["steps"], options["batch"]
    frame = (batch, steps) if options["batch_first"] else (steps, batch)
    x = torch.randn(*frame, options["size"], generator=generator)
    if options["words"]:
        x = torch.randint(0, options["words"], frame, generator=generator)
    rnn = model.rnn
    shape = (rnn.num_layers * rnn.num_directions, batch, rnn.hidden_size)
    state = tuple(torch.randn(shape, generator=generator) for _ in range(rnn.cell.n_states))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of layers whose readers the tracer cannot prove
        small = gw.compress(model)
    return Case(model, small, x, state if len(state) == 2 else state[0], seed)


def emptied(seed: int, options: dict[str, Any], name: str) -> Case:
    """A chain with a matrix of zeros; where the head reads nothing, no neuron reads another either."""
    case = build(seed, options)
    with torch.no_grad():
        case.model.get_parameter(name).zero_()
        if name == "fc.weight":
            for other, p in case.model.named_parameters():
                p.mul_(0 if "weight_hh" in other else 1)
    case.small = gw.compress(case.model)
    return case


def keep_masks(model: nn.Module, o: dict[str, Any], generator: torch.Generator) -> dict[str, Tensor]:
    """Random zeros, whole rows (constant gates, removed words) and whole columns (unread neurons)."""
    masks = {}
    for name, p in model.named_parameters():
        if p.dim() == 2:
            keep = torch.rand(p.shape, generator=generator) < o["density"]
            keep &= torch.rand(len(p), 1, generator=generator) < 0.7
            masks[name] = keep & (torch.rand(p.shape[1], generator=generator) >= o["dead"])
    return masks


def cut(model: nn.Module, o: dict[str, Any], generator: torch.Generator) -> None:
    with torch.no_grad():
        for name, keep in keep_masks(model, o, generator).items():
            model.get_parameter(name).mul_(keep)


def make_bayesian(model: nn.Module, o: dict[str, Any], generator: torch.Generator) -> None:
    """Posteriors far from the threshold on either side; group variables of either sign, some of them cut."""
    masks = keep_masks(model, o, generator)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gw.Variational(model, "W+G+N", n_train=10, vocabulary=["emb"] if o["words"] else [])
    with torch.no_grad():
        for prefix, module in model.named_modules():
            for name in module.posterior_names() if isinstance(module, Posterior) else ():
                mean, log_sigma = getattr(module, name), getattr(module, name + LOG_SIGMA)
                keep = masks.get(f"{prefix}.{name}")
                if keep is None:  # a group variable
                    keep = torch.rand(mean.shape, generator=generator) < 0.75
                    sign = torch.sign(torch.randn(mean.shape, generator=generator))
                    mean.copy_(sign * (0.5 + torch.rand(mean.shape, generator=generator)))
                log_sigma.copy_(torch.where(keep, -9.0, 9.0))


def chain_of(model: nn.Module) -> Chain:
    """The chain of a model as it is."""
    return find_chain(model, recorded(model))


def engine_of(model: nn.Module) -> Any:
    """None where it is refused, by name and with a way out."""
    try:
        return gw.Engine(model)
    except ChainError as error:
        said = str(error)
        return None if "accelerate" in said or "in torch alone" in said else error


def check_answers(model: nn.Module, *inputs: Any, **named: Any) -> None:
    """Chain or not, an engine gives torch's answers, or there is none; where torch raises, none is asked for."""
    engine = engine_of(model)
    try:
        with torch.no_grad():
            expected = model(*inputs, **named)
    except Exception:
        return
    if engine is None:
        return
    try:
        answer, _ = engine(*inputs, **named)
    except (TypeError, ValueError):
        return  # arguments of other shapes than it could have told
    torch.testing.assert_close(answer, expected, equal_nan=True, check_dtype=False, **CLOSE)
