"""Sparse variational dropout with group variables, for whole models."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gatewise.nn.lookup import cell_of, check_finite, ending, is_compact, is_single_step, replace_module
from gatewise.readers import ReaderGraph, Stated, find_readers
from gatewise.readers.graph import joined
from gatewise.sparsify.checks import (
    Chosen,
    check_choice,
    check_levels,
    check_numbers,
    check_warm_up,
    chosen_modules,
)
from gatewise.sparsify.dispatch import sample_and_kl
from gatewise.sparsify.fixed import Fixed
from gatewise.sparsify.layers import (
    LOG_SIGMA,
    UPDATES,
    Posterior,
    RecurrentPosterior,
    VariationalCell,
    VariationalEmbedding,
    VariationalLinear,
    VariationalRecurrent,
    is_variational,
)
from gatewise.sparsify.posterior import kl_of, total_kl, versions_of
from gatewise.sparsify.ranks import Agreement, check_not_wrapped, enter_own_noise
from gatewise.sparsify.watch import EVERY, Watch, is_capturing, left_of_posteriors, never_moved
from gatewise.structure import Structure
from gatewise.wording import by_reason

NOISES = ("sequence", "batch")
LINEAR_NOISES = ("weights", "local", "sequence")


class Variational(Fixed):
    """penalty = KL(q(w, z) || log-uniform) / n_train, with q a normal for every weight and group variable.

    Converts LSTM, GRU, LSTMCell, GRUCell, Linear and Embedding layers of the model in place: their parameters become
    means, log sigmas are added beside them, and at the levels W+N and W+G+N the group variables z_x (components of an
    embedding that feeds the layer), z_h (neurons) and z of every gate. Add the optimizer afterwards.

    While the model trains, each of its forward passes is a mini-batch: weights are drawn once for it, group variables
    once per sequence (`noise="sequence"`, as the authors do) or once per batch (`noise="batch"`, folded into the
    matrices, so that torch's fused kernels run). In evaluation the layers use means, with everything whose
    m^2 / sigma^2 is below `snr_threshold` at zero. A frozen layer stays as it is.

    Args:
        n_train: training objects: texts, or target tokens of a language model.
        layers: names of the layers to convert; all by default.
        vocabulary: embeddings that get one variable per word.
        linear_noise: "weights", "local" or "sequence", for all Linear layers or by name (see VariationalLinear).
        warm_up: (first, last) step between which the KL weight grows from 0 to 1; None: 1 throughout (the paper).
        log_sigma: where every log sigma starts.
        batch_dim: position of the batch in the inputs of Linear and Embedding layers; found from the recurrent
            layers' `batch_first` by default.
        readers: who reads a layer, where tracing cannot prove it.
    """

    def __init__(
        self,
        model: nn.Module,
        levels: str = "W+G+N",
        *,
        n_train: int,
        layers: Sequence[str] | None = None,
        vocabulary: Sequence[str] = (),
        noise: str = "sequence",
        linear_noise: str | Mapping[str, str] = "weights",
        warm_up: tuple[int, int] | None = None,
        snr_threshold: float = 0.05,
        log_sigma: float = -3.0,
        batch_dim: int | None = None,
        readers: Stated | None = None,
    ) -> None:
        check_levels(levels)
        check_choice("noise", noise, NOISES)
        check_warm_up(warm_up)
        check_numbers(n_train, snr_threshold, log_sigma, batch_dim)
        if isinstance(vocabulary, str):
            raise ValueError(f"vocabulary={vocabulary!r} must be a list of names, not a string.")
        if is_variational(model):
            raise ValueError(
                "The model is variational already; converting it again would lose its posteriors. To go on from a "
                "file, convert a fresh model and load into it: load_state_dict(), or gatewise.load(path, into=model)."
            )
        check_finite(model)
        graph = find_readers(model, readers)
        found = chosen_modules(model, (nn.Linear, nn.Embedding), layers, why_not=WhyNot(model, graph))
        chosen = without_frozen(found.modules, layers is not None)
        check_vocabulary(chosen, found.left_out, vocabulary)
        check_not_wrapped(model, chosen.values())
        self.model, self.levels, self.n_train, self.readers = model, levels, n_train, readers
        self.warm_up = warm_up
        self.kl_weights: dict[str, Tensor] = {}  # of group variables, by name; what gatewise.Budget turns
        self._kl: tuple[Tensor, list[int]] | None = None
        noises = linear_noises(linear_noise, chosen)
        position = batch_dim if batch_dim is not None else found_batch_dim(chosen, noise, noises, vocabulary)
        shared: dict[int, nn.Parameter] = {}
        warn_left(graph, found, chosen, levels)
        for name, dense in chosen.items():
            new = converted(name, dense, noises, position)
            new.become_posterior(noise, snr_threshold)
            own = dict(new.named_parameters(recurse=False, remove_duplicate=False))
            for weight in [n for n, p in own.items() if p.dim() == 2]:
                new.add_log_sigma(weight, log_sigma, shared)
            if isinstance(new, RecurrentPosterior):
                new.add_group_variables(levels, fed_by_embedding(name, graph, model), log_sigma)
            if isinstance(new, VariationalEmbedding) and name in vocabulary:
                new.add_scale("word_scale", new.weight, (new.weight.shape[0],), log_sigma)
            replace_module(model, dense, new.train(dense.training))
        self._converted, self._n_posteriors = tuple(chosen), len(self._posteriors())
        first = self._converted[0]
        self.counter = joined(first, UPDATES)
        model.get_submodule(first).count_updates()  # type: ignore[operator]
        self._watch, self._ranks = Watch(self._left), Agreement(model)
        self._common: Tensor | None = None  # random numbers that the ranks share, while they are not in use
        model.register_forward_pre_hook(self._begin)
        model.register_forward_hook(self._end, always_call=True)
        self._made = True

    def __repr__(self) -> str:
        named = ", ".join(name or "itself" for name in self._converted)
        numbers = f"n_train={self.n_train:,}, warm_up={self.warm_up}"
        return f"<Variational {self.levels} of {type(self.model).__name__} ({named}): {numbers}>"

    @property
    def steps(self) -> Tensor:
        """Updates so far: a buffer of the model, `counter` in its state_dict."""
        try:
            return self.model.get_buffer(self.counter)
        except AttributeError:
            self._check_variational()
            raise

    def penalty(self) -> Tensor:
        """KL / n_train, times the warm-up weight if there is one; group variables times `kl_weights`.

        While the parameters are as the last forward pass saw them, it is the KL that came with their samples; what is
        written through `.data` in between torch does not tell, so it counts from the next pass on.
        """
        means, log_sigmas = self._parameters()
        versions = versions_of((*means, *log_sigmas))
        if (
            self._kl is not None
            and self._kl[1] == versions
            and self._kl[0].requires_grad == torch.is_grad_enabled()
        ):
            # It came with the samples of the last forward pass, whose weights are still in place.
            total = self._kl[0]
        else:
            total = total_kl(means, log_sigmas)
        self._kl = None
        for name, weight in self.kl_weights.items():
            mean, log_sigma = self.model.get_parameter(name), self.model.get_parameter(name + LOG_SIGMA)
            total = total + torch.dot((weight - 1).flatten(), kl_of(mean, log_sigma).flatten())
        if self.warm_up is not None:
            first, last = self.warm_up
            total = total * ((self.steps - first) / (last - first)).clamp(0, 1)
        return total / self.n_train

    def step(self) -> None:
        """Count the update, for the warm-up. Call it after the optimizer's step.

        Warns once when for some hundred updates nothing of a layer was above the threshold, or no optimizer has the
        parameters that were added.
        """
        self.steps.add_(1)
        if torch.compiler.is_compiling():
            return
        empty = self._watch.update()
        self._ranks.check(self._watch.updates)
        if self._watch.updates == EVERY and not is_capturing() and never_moved(self._parameters()[1]):
            warnings.warn(
                f"In {EVERY} updates no log sigma has moved: the optimizer does not have them, and what goes is "
                "decided by the sigma they began with, not by one that was learnt. Make the optimizer after "
                "gatewise.Variational(...), which adds parameters.",
                stacklevel=2,
            )
        if empty:
            updates = self._watch.updates
            longer = 2 * max(5 * updates, 0 if self.warm_up is None else self.warm_up[1])
            warnings.warn(
                f"{', '.join(empty)}: {self._watch.how_long} no input weight, or no neuron, was above snr_threshold: "
                "evaluation gives every input the same answer. The penalty, KL / n_train with "
                f"n_train={self.n_train:,}, outweighs the data. n_train must be the number of training texts, or of "
                f"target tokens; if it is, let the penalty grow: warm_up=(0, {longer:_.0f}).",
                stacklevel=2,
            )

    def _left(self) -> dict[str, bool]:
        return left_of_posteriors(self.model)

    def structure(self) -> Structure:
        """What is left: the paper's one-pass count, as keep-masks."""
        return Structure.from_weights(self.model, self.readers)

    def _posteriors(self) -> list[tuple[Posterior, str]]:
        """Every mean once, with the layer that owns it: a shared parameter has one posterior and one KL."""
        seen: dict[int, tuple[Posterior, str]] = {}
        for module in self.model.modules():
            if isinstance(module, Posterior):
                for name in module.posterior_names():
                    seen.setdefault(id(getattr(module, name)), (module, name))
        return list(seen.values())

    def _check_variational(self) -> None:
        """Layers that are no longer variational have no KL and count nothing."""
        modules = dict(self.model.named_modules())
        for name in self._converted:
            kind = type(modules.get(name)).__name__
            if not isinstance(modules.get(name), Posterior):
                raise RuntimeError(
                    f"{name}: is no longer variational but {kind}: this Variational belongs to the model as it was "
                    "before compress() or gatewise.Refit. Use a Refit to train on what they made, or GroupLasso to "
                    "sparsify a compact network further."
                )

    def _parameters(self) -> tuple[list[Tensor], list[Tensor]]:
        owners = self._posteriors()
        if not owners or len(owners) < self._n_posteriors:
            self._check_variational()
        for layer, name in owners:
            if getattr(layer, name).dtype == torch.float16:
                raise TypeError(
                    f"{type(layer).__name__}.{name} is float16, whose range the KL leaves. Keep parameters in "
                    "float32 and train under torch.autocast, or use bfloat16."
                )
        return [getattr(m, name) for m, name in owners], [getattr(m, name + LOG_SIGMA) for m, name in owners]

    # Traced, it would lose what it keeps for the way back. As torch.compiler.disable, which imports all of dynamo.
    @torch._disable_dynamo  # type: ignore[attr-defined]
    def _begin(self, model: nn.Module, args: Any) -> None:
        """Draw all weights of the mini-batch at once, and their KL in the same pass."""
        layers = [module for module in model.modules() if isinstance(module, Posterior)]
        for layer in layers:
            layer.forget()
            layer.in_batch = True
        if not any(layer.training for layer in layers):
            return
        self._come_back()
        self._common = enter_own_noise(next(layers[0].parameters()).device)
        means, log_sigmas = self._parameters()
        samples, total = sample_and_kl(means, log_sigmas)
        by_mean = {id(mean): sample for mean, sample in zip(means, samples)}
        for layer in layers:
            layer.samples = {name: by_mean[id(getattr(layer, name))] for name in layer.posterior_names()}
        self._kl = total, versions_of((*means, *log_sigmas))
        for sample in samples:
            if sample.requires_grad:
                sample.register_hook(self._went_back)

    def _went_back(self, grad: Tensor) -> None:
        """A backward pass through the samples frees what their KL would need for one of its own."""
        self._kl = None

    def _end(self, model: nn.Module, args: Any, output: Any) -> None:
        """What was drawn stays until the next pass: gradient checkpointing computes layers again on the way back."""
        for layer in model.modules():
            if isinstance(layer, Posterior):
                layer.in_batch, layer.thresholded = False, {}
        if self._common is not None:
            self._come_back()

    @torch._disable_dynamo  # type: ignore[attr-defined]
    def _come_back(self) -> None:
        """To the random numbers that the ranks share."""
        if self._common is not None:
            torch.set_rng_state(self._common)
        self._common = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kl": None}  # part of a graph


class WhyNot:
    """What stands against a posterior for every weight of a layer; None if nothing does."""

    def __init__(self, model: nn.Module, graph: ReaderGraph) -> None:
        self.raw_of, self.owners = graph.raw_of, dict[int, list[nn.Module]]()
        for module in model.modules():
            for p in module.parameters(recurse=False):
                self.owners.setdefault(id(p), []).append(module)
        self.paths = {module: name for name, module in model.named_modules()}

    def __call__(self, name: str, module: nn.Module) -> str | None:
        if not name:
            return "it is the model itself and cannot be replaced in place; put it in a module"
        if (why := self.alone(name, module)) is not None:
            return why
        # Of a shared weight one layer would see the posterior and another one its bare mean.
        for p in module.parameters(recurse=False):
            for other in self.owners[id(p)] if p.dim() == 2 else ():
                path = self.paths[other]
                if other is not module and (why := self.alone(path, other)) is not None:
                    return f"it shares its weight with {path}: {why}"
        return None

    def alone(self, name: str, module: nn.Module) -> str | None:
        if is_compact(module):
            return (
                "it is compact already, and gatewise.Variational converts whole layers; gatewise.GroupLasso "
                "sparsifies it further, gatewise.Refit trains it on"
            )
        if isinstance(module, nn.Embedding) and (module.max_norm is not None or module.sparse):
            return (
                "an embedding with max_norm or sparse gradients cannot be converted, since the KL pulls on every row "
                "at every step; build it without them"
            )
        if (used := self.raw_of.get(name)) is not None:
            return (
                f"forward() uses {used} past the layer, where it would stay without noise; call the layer instead "
                "(to share a weight, assign it: fc.weight = emb.weight)"
            )
        matrices = {n: p.requires_grad for n, p in module.named_parameters(recurse=False) if p.dim() == 2}
        frozen = [n for n, trains in matrices.items() if not trains]
        if frozen and len(frozen) < len(matrices):
            return f"{frozen[0]} is frozen (requires_grad=False), and a posterior would train beside it; unfreeze it"
        return None


def without_frozen(chosen: Mapping[str, nn.Module], asked_for: bool) -> dict[str, nn.Module]:
    """A log sigma beside a frozen mean would train, and prune what should stay as it is."""
    found = {}
    for name, module in chosen.items():
        matrices = {n: p.requires_grad for n, p in module.named_parameters(recurse=False) if p.dim() == 2}
        if any(matrices.values()):
            found[name] = module
        elif asked_for:
            raise ValueError(
                f"{joined(name, min(matrices))} is frozen (requires_grad=False), and a posterior would train beside "
                "it. Leave the layer out of layers=[...], or unfreeze it."
            )
    if not found:
        raise ValueError("All layers are frozen (requires_grad=False): there is nothing to sparsify.")
    return found


def check_vocabulary(
    chosen: Mapping[str, nn.Module], left_out: Mapping[str, str], vocabulary: Sequence[str]
) -> None:
    embeddings = [name for name, module in chosen.items() if isinstance(module, nn.Embedding)]
    for name in vocabulary:
        if name not in embeddings:
            listed = ", ".join(embeddings) or "none"
            why = f" ({left_out[name]})" if name in left_out else ""
            raise ValueError(
                f"vocabulary: {name!r} is not an embedding among the layers to convert{why}; there are: {listed}."
            )


def linear_noises(linear_noise: str | Mapping[str, str], chosen: Mapping[str, nn.Module]) -> dict[str, str]:
    linears = [name for name, module in chosen.items() if isinstance(module, nn.Linear)]
    given = dict.fromkeys(linears, linear_noise) if isinstance(linear_noise, str) else dict(linear_noise)
    for name, value in given.items():
        check_choice(f"linear_noise of {name!r}", value, LINEAR_NOISES)
        if name not in linears:
            raise ValueError(
                f"linear_noise: {name!r} is not a Linear layer to convert; there are {', '.join(linears)}."
            )
    return dict.fromkeys(linears, "weights") | given


def found_batch_dim(
    chosen: Mapping[str, nn.Module], noise: str, noises: Mapping[str, str], vocabulary: Sequence[str]
) -> int:
    """Where the recurrent layers have the batch; asked for only where something is drawn once per sequence."""
    layers = [module for module in chosen.values() if cell_of(module) is not None]
    firsts = {bool(module.batch_first) for module in layers if not is_single_step(module)}
    if len(firsts) == 1:
        return 0 if firsts.pop() else 1
    if "sequence" in noises.values() or (noise == "sequence" and vocabulary):
        why = (
            "The recurrent layers do not agree"
            if firsts
            else "No recurrent layer among those to convert tells"
        )
        raise ValueError(f"{why} where the batch is (batch_first); say it with batch_dim=.")
    return 0


def converted(
    name: str, dense: nn.Module, noises: Mapping[str, str], batch_dim: int
) -> VariationalLinear | VariationalEmbedding | VariationalRecurrent | VariationalCell:
    """The variational layer of the same shape, with the parameters of the dense one as its means."""
    if isinstance(dense, nn.Linear):
        return VariationalLinear.convert(dense, noises[name], batch_dim)
    if isinstance(dense, nn.Embedding):
        return VariationalEmbedding.convert(dense, batch_dim)
    if isinstance(dense, nn.RNNCellBase):
        return VariationalCell.convert(dense)
    return VariationalRecurrent.convert(dense)


def fed_by_embedding(name: str, graph: ReaderGraph, model: nn.Module) -> bool:
    reads = graph.reads_by(joined(name, "weight_ih" + ending(model.get_submodule(name), 0, 0)))
    return any(
        isinstance(model.get_submodule(graph.blocks[read.block].module), nn.Embedding) for read in reads
    )


def warn_left(graph: ReaderGraph, found: Chosen, chosen: Mapping[str, nn.Module], levels: str) -> None:
    """One warning for layers that are left out, and for embeddings without known readers."""
    said = found.said()
    unknown = {}
    for name, module in chosen.items():
        if isinstance(module, nn.Embedding) and name in graph.exposed and levels != "W":
            unknown[name] = graph.exposed[name]
    said += [
        f"{names}: no z_x is made for its components, because {why}." for names, why in by_reason(unknown)
    ]
    if said:
        warnings.warn(" ".join(said) + graph.way_out(unknown), stacklevel=3)
