"""Layers whose weights and group variables are normal posteriors: Linear, Embedding, recurrent stacks and cells."""

from __future__ import annotations

from collections.abc import Mapping
from types import EllipsisType
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gatewise.layout import Cell, State
from gatewise.nn import Recurrent
from gatewise.nn.assumptions import check_neuron_scale_folds
from gatewise.nn.forms import Form
from gatewise.nn.lookup import cell_of, ending, gate_activation_of, places_of
from gatewise.nn.recurrence import Weights, scan
from gatewise.nn.recurrent import silence
from gatewise.nn.single_step import SingleStep
from gatewise.sparsify.posterior import kept

LOG_SIGMA = "_log_sigma"  # the standard deviation of parameter `p` lives beside it, as `p_log_sigma`
UPDATES = "update_count"  # a buffer of the first layer: it travels with the model, and a count is no float to be cast


class Posterior(Form):
    """Mixin: parameter p is the mean of a normal whose log standard deviation is the sibling `p_log_sigma`.

    training    w = m + sigma eps, one sample per mini-batch, or one per sequence for group variables
    evaluation  w = m where m^2 / sigma^2 > snr_threshold, else 0
    """

    noise: str
    snr_threshold: float

    def become_posterior(self, noise: str, snr_threshold: float) -> None:
        self.noise, self.snr_threshold = noise, snr_threshold
        self.samples: dict[str, Tensor] = {}  # of this mini-batch, filled by gatewise.Variational
        self.sequence_noise: dict[tuple[str, int], Tensor] = {}
        self.thresholded: dict[str, Tensor] = {}  # in evaluation without gradients
        self.in_batch = False  # between the first and the last layer of one forward() of the model

    def add_log_sigma(self, name: str, start: float, shared: dict[int, nn.Parameter]) -> None:
        """Give a parameter its log sigma; a parameter that two layers share has one posterior."""
        mean = getattr(self, name)
        sigma = shared.setdefault(id(mean), nn.Parameter(torch.full_like(mean, start)))
        self.register_parameter(name + LOG_SIGMA, sigma)

    def add_scale(self, name: str, like: Tensor, shape: tuple[int, ...], start: float) -> None:
        """A group variable: mean exactly 1."""
        ones = torch.ones(shape, dtype=like.dtype, device=like.device)
        self.register_parameter(name, nn.Parameter(ones))
        self.add_log_sigma(name, start, {})

    def count_updates(self) -> None:
        """Keep the count of updates, for the whole model."""
        device = next(self.parameters()).device
        self.register_buffer(UPDATES, torch.zeros((), dtype=torch.int64, device=device))

    def posterior_names(self) -> list[str]:
        """The parameters that are means, in the order of registration."""
        # With duplicates: layers of a stack may share.
        own = dict(self.named_parameters(recurse=False, remove_duplicate=False))
        return [name for name in own if name + LOG_SIGMA in own]

    def masked(self, name: str, at: int | EllipsisType = ...) -> Tensor:
        """The mean, or one row of it, with everything below the SNR threshold at zero."""
        mean, log_sigma = getattr(self, name)[at], getattr(self, name + LOG_SIGMA)[at]
        return torch.where(kept(mean, log_sigma, self.snr_threshold), mean, torch.zeros_like(mean))

    def masked_once(self, name: str) -> Tensor:
        """The same for every call in one pass without gradients: a cell is called at every step."""
        # With gradients, what a checkpointed step computes again must be what it computed.
        if not self.in_batch or torch.is_grad_enabled():
            return self.masked(name)
        found = self.thresholded.get(name)
        if found is None:
            found = self.thresholded[name] = self.masked(name)
        return found

    def drawn(self, name: str) -> Tensor:
        """The value for this call: the sample of the mini-batch in training, the masked mean in evaluation."""
        if not self.training:
            return self.masked_once(name)
        if name in self.samples and self.in_same_pass():
            return self.samples[name]
        # Called outside the model's forward().
        mean, log_sigma = getattr(self, name), getattr(self, name + LOG_SIGMA)
        return torch.addcmul(mean, log_sigma.exp(), torch.randn_like(mean))

    def scale(self, name: str, n: int) -> Tensor | None:  # (dims), or (n, dims)
        """A group variable: per batch, or one sample for each of n sequences."""
        if getattr(self, name, None) is None:
            return None
        if not self.training or self.noise == "batch":
            return self.drawn(name)
        mean, log_sigma = getattr(self, name), getattr(self, name + LOG_SIGMA)
        # Not the finished sample is remembered: a checkpoint runs the layer first without, then with gradients.
        return torch.addcmul(mean, log_sigma.exp(), self.noise_of_sequences(name, n, mean))

    def noise_of_sequences(self, name: str, n: int, like: Tensor) -> Tensor:  # (n, dims)
        """The same for every call of a layer in one pass, and for its repetition by gradient checkpointing."""
        known = self.sequence_noise.get((name, n)) if self.in_same_pass() else None
        if known is not None and self.in_batch:
            return known
        # A repetition draws as the pass did, so that what comes after it finds the random numbers in the same place.
        eps = torch.randn(n, *like.shape, dtype=like.dtype, device=like.device)
        if self.in_batch:
            self.sequence_noise[name, n] = eps
        return eps if known is None else known

    def in_same_pass(self) -> bool:
        """Whether this call is part of the model's forward(), or of its repetition by gradient checkpointing."""
        return self.in_batch or torch._C._current_graph_task_id() != -1

    def forget(self) -> None:
        """Drop what was drawn; the next mini-batch draws anew."""
        self.samples, self.sequence_noise, self.thresholded = {}, {}, {}

    def __getstate__(self) -> dict[str, Any]:
        # Parts of a pass, not of the layer.
        return {**self.__dict__, "samples": {}, "sequence_noise": {}, "thresholded": {}}

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        metadata: Any,
        strict: bool,
        missing: list[str],
        *rest: Any,
    ) -> None:
        """A dense checkpoint holds means only: then the other tensors of the posterior keep their values."""
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, missing, *rest)
        extra = [prefix + name for name in dict(self.named_parameters(recurse=False)) if self.is_extra(name)]
        if not any(name in state_dict for name in extra):
            missing[:] = [name for name in missing if name not in (*extra, prefix + UPDATES)]

    @staticmethod
    def is_extra(name: str) -> bool:
        return name.endswith(LOG_SIGMA) or name.startswith(
            ("gate_scale", "neuron_scale", "input_scale", "word_scale")
        )


def check_has_batch(axes: torch.Size, batch_dim: int) -> None:
    if batch_dim >= len(axes):
        raise ValueError(
            f"batch_dim={batch_dim}, but an input has the axes {tuple(axes)} before its channels: which of them are "
            f"sequences? It must be 0 to {len(axes) - 1}."
        )


class VariationalLinear(Posterior, nn.Linear):
    """y = x W^T + b with W ~ N(m, sigma^2), b deterministic.

    `linear_noise`:
        weights   one sample of W per mini-batch
        local     y ~ N(x m^T + b, x^2 sigma^2^T), sampled for every output (local reparametrisation)
        sequence  the same with one epsilon per sequence and output, shared over time
    """

    linear_noise: str
    batch_dim: int
    weight_log_sigma: nn.Parameter
    stands_for = nn.Linear

    @classmethod
    def convert(cls, dense: nn.Linear, linear_noise: str, batch_dim: int) -> VariationalLinear:
        new = cls(dense.in_features, dense.out_features, dense.bias is not None, device="meta")
        new.weight = dense.weight
        if dense.bias is not None:
            new.bias = dense.bias
        new.linear_noise, new.batch_dim = linear_noise, batch_dim
        return new

    def deterministic_weight(self) -> Tensor:
        return self.masked("weight")

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or self.linear_noise == "weights":
            return F.linear(input, self.drawn("weight"), self.bias)
        mean = F.linear(input, self.weight, self.bias)
        variance = F.linear(input.square(), (2 * self.weight_log_sigma).exp()) + 1e-8
        shape = list(mean.shape)
        if self.linear_noise == "sequence" and len(shape) > 2:
            check_has_batch(input.shape[:-1], self.batch_dim)
            shape[:-1] = [size if d == self.batch_dim else 1 for d, size in enumerate(shape[:-1])]
        return torch.addcmul(mean, variance.sqrt(), torch.randn(shape, dtype=mean.dtype, device=mean.device))


def looked_up(values: Tensor, words: Tensor) -> Tensor:
    """values[words], with a way back that adds gradients up as they come; that of an index sorts the words first."""
    return values.index_select(0, words.flatten()).view(words.shape)


class VariationalEmbedding(Posterior, nn.Embedding):
    """e(word) = W[word] * z_word, with z only where the vocabulary has variables; z once per sequence and word."""

    batch_dim: int
    word_scale: nn.Parameter | None
    word_scale_log_sigma: nn.Parameter
    stands_for = nn.Embedding

    @classmethod
    def convert(cls, dense: nn.Embedding, batch_dim: int) -> VariationalEmbedding:
        new = cls(dense.num_embeddings, dense.embedding_dim, dense.padding_idx, device="meta")
        new.scale_grad_by_freq = dense.scale_grad_by_freq
        new.weight, new.batch_dim = dense.weight, batch_dim
        new.register_parameter("word_scale", None)
        return new

    def deterministic_weight(self) -> Tensor:
        return self.masked("weight")

    def deterministic_word_scale(self) -> Tensor | None:
        return None if self.word_scale is None else self.masked("word_scale")

    def forward(self, input: Tensor) -> Tensor:  # word ids of any shape
        if self.training and input.dim() == 2 and self.batch_dim == 0:
            # In memory time comes first, as the recurrence reads it: both ways it would copy the other order.
            return self._vectors(input.t(), 1).transpose(0, 1)
        return self._vectors(input, self.batch_dim)

    def _vectors(self, input: Tensor, batch_dim: int) -> Tensor:
        weight = self.drawn("weight")
        vectors = F.embedding(input, weight, self.padding_idx, scale_grad_by_freq=self.scale_grad_by_freq)
        if self.word_scale is not None:
            vectors = vectors * self._word_scales(input, batch_dim).unsqueeze(-1)
        if self.training and self.padding_idx is not None:
            # The dense layer gives this row no gradient: it is no part of what is learnt, so it has no noise either.
            padding = (input == self.padding_idx).unsqueeze(-1)
            vectors = torch.where(padding, self._padding_vector(self.padding_idx), vectors)
        return vectors

    @torch.no_grad()
    def _padding_vector(self, word: int) -> Tensor:  # (E,)
        """What evaluation gives the word."""
        vector = self.masked("weight", word)
        return vector if self.word_scale is None else vector * self.masked("word_scale", word)

    def _word_scales(self, words: Tensor, batch_dim: int) -> Tensor:
        """z of every word in its place; a word that comes twice in a sequence has the same z there."""
        assert self.word_scale is not None
        if not self.training or self.noise == "batch":
            return looked_up(self.drawn("word_scale"), words)
        if words.dim() > 1:
            check_has_batch(words.shape, batch_dim)
        by_sequence = words.movedim(batch_dim, 0) if words.dim() > 1 else words[None]
        eps = torch.randn(len(by_sequence), self.num_embeddings, dtype=self.weight.dtype, device=words.device)
        eps = eps.gather(1, by_sequence.flatten(1)).view(by_sequence.shape)
        eps = eps.movedim(0, batch_dim) if words.dim() > 1 else eps[0]
        sigma = self.word_scale_log_sigma.exp()
        return torch.addcmul(looked_up(self.word_scale, words), looked_up(sigma, words), eps)


class RecurrentPosterior(Posterior):
    """Mixin: W, z_x, z of the gates and z_h of a recurrent layer or cell are posteriors; biases are deterministic."""

    cell: Cell
    input_size: int
    hidden_size: int

    def add_group_variables(self, levels: str, embedded: bool, start: float) -> None:
        if levels != "W":
            check_neuron_scale_folds(self.cell)  # now, not after the training
        ends = [ending(self, *place) for place in places_of(self)]
        example = getattr(self, "weight_hh" + ends[0])
        if levels != "W" and embedded:
            self.add_scale("input_scale", example, (self.input_size,), start)
        for end in ends:
            if levels == "W+G+N":
                self.add_scale("gate_scale" + end, example, (self.cell.n_gates, self.hidden_size), start)
            if levels != "W":
                self.add_scale("neuron_scale" + end, example, (self.hidden_size,), start)

    def weights(self, layer: int, direction: int, n_sequences: int) -> Weights:
        end = ending(self, layer, direction)
        return Weights(
            self.drawn("weight_ih" + end),
            self.drawn("weight_hh" + end),
            getattr(self, "bias_ih" + end, None),
            getattr(self, "bias_hh" + end, None),
            self.scale("input_scale", n_sequences) if layer == 0 else None,
            self.scale("gate_scale" + end, n_sequences),
            self.scale("neuron_scale" + end, n_sequences),
        )

    def deterministic(self, layer: int, direction: int) -> Weights:
        was = self.training
        self.training = False  # this layer alone, and only for the look-up
        try:
            return self.weights(layer, direction, 1)
        finally:
            self.training = was


class Stack(Recurrent):
    """A recurrent stack in the place of another one, whose parameters it has."""

    @classmethod
    def convert(cls, old: nn.Module) -> Self:
        cell, new = cell_of(old), cls.__new__(cls)
        assert cell is not None
        nn.Module.__init__(new)
        new.cell = cell
        labels = "input_size hidden_size num_layers bias batch_first dropout bidirectional"
        options = {label: getattr(old, label) for label in labels.split()}
        Recurrent.__init__(new, **options, device="meta", gate_activation=gate_activation_of(old))
        for name in new._flat_weights_names:
            new.register_parameter(name, getattr(old, name))
        return new

    def to_dense(self) -> nn.LSTM | nn.GRU:
        raise ValueError(
            "A layer that is or was variational has no dense twin of its own: z_h belongs to its readers. "
            "gatewise.compress(model) cuts and folds the whole model."
        )


class OneStep(SingleStep):
    """A recurrent cell in the place of another one, whose parameters it has."""

    bias: bool

    @classmethod
    def convert(cls, old: nn.Module) -> Self:
        cell, new = cell_of(old), cls()
        assert cell is not None
        new.cell = cell
        for name in ("bias", "input_size", "hidden_size"):
            setattr(new, name, getattr(old, name))
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            new.register_parameter(name, getattr(old, name))
        return new

    def extra_repr(self) -> str:
        said = f"{self.cell.name}, {self.input_size}, {self.hidden_size}"
        return said if self.bias else f"{said}, bias=False"

    def weights(self, layer: int, direction: int, n_sequences: int) -> Weights:
        raise NotImplementedError

    def step(self, x: Tensor, state: State) -> State:
        weights = self.weights(0, 0, len(x))
        return scan(self.cell, x[None], silence(state, weights), weights)[1]


class VariationalRecurrent(RecurrentPosterior, Stack):
    """A recurrent stack."""

    def flatten_parameters(self) -> None:
        """Nothing to do: what runs is drawn anew for every batch."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not self.in_same_pass():
            self.forget()
        return super().forward(*args, **kwargs)


class VariationalCell(RecurrentPosterior, OneStep):
    """A recurrent cell. All steps of one forward() of the model have the same weights, and a sequence the same z."""


def is_variational(model: nn.Module) -> bool:
    return any(isinstance(module, Posterior) for module in model.modules())
