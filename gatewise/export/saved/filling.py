"""A model takes over what was saved: it is compared with it first, by name, shape and type, then changed.

check_fits       the model that is to be filled, with the layers that will be replaced, is the one that was saved
replace_layers   gatewise layers take the place of those that they were made from
fill             all tensors; one parameter where the file has one, two where it has two
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from gatewise.export.saved.contents import Contents
from gatewise.export.saved.file import CheckpointError
from gatewise.export.saved.rebuild import dense_layer
from gatewise.export.saved.rebuild_compact import parts
from gatewise.nn.lookup import cell_of, replace_module
from gatewise.readers.graph import joined

# What a tensor is made of; within floating and whole numbers the file decides how many bits they have.
NUMBERS: tuple[Callable[[torch.dtype], bool], ...] = (
    lambda dtype: dtype.is_floating_point,
    lambda dtype: dtype.is_complex,
    lambda dtype: dtype == torch.bool,
)


def check_fits(model: nn.Module, layers: Mapping[str, nn.Module], contents: Contents, file: Path) -> None:
    """The model, with the layers that will be replaced, has the file's names and shapes. Nothing is changed yet."""
    kind = type(model).__name__
    advice = f"build {kind} with the arguments it had when it was saved ({contents.kind})"
    modules = dict(model.named_modules(remove_duplicate=False))
    for name, new in layers.items():
        if name not in modules:
            raise CheckpointError(f"{file}: {kind} has no layer {name!r}, which the file replaces; {advice}.")
        cells = [cell.name for cell in (cell_of(modules[name]), cell_of(new)) if cell is not None]
        if len(set(cells)) > 1:
            raise CheckpointError(
                f"{file}: {name} is {cells[1]} in the file and {cells[0]} in {kind}; {advice}."
            )
        for width in ("in_features", "out_features", "num_embeddings", "embedding_dim", "input_size", "hidden_size",
                      "num_layers", "bidirectional", "batch_first"):  # fmt: skip
            own, saved = getattr(modules[name], width, None), getattr(new, width, None)
            if own is not None and saved is not None and own != saved:
                raise CheckpointError(
                    f"{file}: {name} has {width}={saved} in the file and {own} in {kind}; {advice}."
                )
    expected = state_after(model, layers, modules)
    for name in [*contents.blanks, *expected]:
        check_tensor(name, contents.blanks.get(name), expected.get(name), kind, advice, file)
    parameters = {name for name, tensor in expected.items() if isinstance(tensor, nn.Parameter)}
    for name in contents.frozen:
        if name not in parameters:
            raise CheckpointError(
                f"{file}: {name} is frozen in the file, but no parameter of {kind}; {advice}."
            )


def state_after(
    model: nn.Module, layers: Mapping[str, nn.Module], modules: Mapping[str, nn.Module]
) -> dict[str, Tensor]:
    """The state_dict that the model will have; a layer that stands in two places is replaced in both."""
    new = {id(modules[name]): layer for name, layer in layers.items()}
    replaced = {place: new[id(old)] for place, old in modules.items() if id(old) in new}
    state = {name: t for name, t in model.state_dict(keep_vars=True).items() if isinstance(t, Tensor)}
    for place, inside in parts(state, replaced).items():
        for name in inside:
            state.pop(joined(place, name), None)
    for place, layer in replaced.items():
        state |= {joined(place, name): t for name, t in layer.state_dict(keep_vars=True).items()}
    return state


def check_tensor(
    name: str, saved: Tensor | None, own: Tensor | None, kind: str, advice: str, file: Path
) -> None:
    if saved is None or own is None:
        where = ("the file", kind) if own is None else (kind, "the file")
        pruned = name.endswith(("_orig", "_mask"))
        way = "make the pruning permanent (torch.nn.utils.prune.remove) before saving" if pruned else advice
        raise CheckpointError(f"{file}: {name} is in {where[0]}, but not in {where[1]}; {way}.")
    found, wanted = tuple(saved.shape), tuple(own.shape)
    if found != wanted:
        raise CheckpointError(f"{file}: {name} is {found} in the file and {wanted} in {kind}; {advice}.")
    if any(is_of(saved.dtype) != is_of(own.dtype) for is_of in NUMBERS):
        raise CheckpointError(
            f"{file}: {name} is {saved.dtype} in the file and {own.dtype} in {kind}; {advice}."
        )


def replace_layers(
    model: nn.Module, layers: Mapping[str, nn.Module], contents: Contents, tensors: Mapping[str, Tensor]
) -> None:
    own = parts(tensors, layers)
    for name, blank in layers.items():
        old = model.get_submodule(name)
        values, new = own[name], blank
        if not type(new).__module__.startswith("gatewise."):
            # A class of the user's may hold more than its state_dict; now it is known how large it gets.
            new = dense_layer({**contents.modules[name], "dense": type(new)}, values)
        new.load_state_dict(values, assign=True)
        example = next(old.parameters(), None)
        if example is not None and not example.is_meta:
            new.to(example.device)
        replace_module(model, old, new.train(old.training))


def fill(model: nn.Module, contents: Contents, tensors: Mapping[str, Tensor]) -> None:
    """All tensors, in place, or as they are where the model has no memory yet."""
    if any(t.is_meta for t in (*model.parameters(), *model.buffers())):
        model.load_state_dict(tensors, assign=True)
        tie(model, contents.shared, tensors)
    else:
        tie(model, contents.shared, tensors)
        model.load_state_dict(tensors)
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_meta:
            raise CheckpointError(
                f"{name}: is on the meta device, and the file does not have it; build {type(model).__name__} on a "
                "device with memory."
            )
    for name in contents.frozen:
        model.get_parameter(name).requires_grad_(False)


def tie(model: nn.Module, shared: Mapping[str, str], tensors: Mapping[str, Tensor]) -> None:
    """One parameter where the file has one, two where it has two; all tensors in the dtype of the file."""
    owner: dict[int, str] = {}
    for name, parameter in list(model.named_parameters(remove_duplicate=False)):
        if name not in tensors:
            continue
        first = shared.get(name, name)
        if first != name:
            put(model, name, model.get_parameter(first))
        elif owner.setdefault(id(parameter), name) != name:
            put(model, name, nn.Parameter(parameter.detach().clone(), parameter.requires_grad))
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if name in tensors:
            # An expanded tensor has one place for many numbers; what is in it will be overwritten.
            several = any(step == 0 and n > 1 for step, n in zip(tensor.stride(), tensor.shape))
            tensor.data = (tensor.data.clone() if several else tensor.data).to(tensors[name].dtype)


def put(model: nn.Module, name: str, parameter: nn.Parameter) -> None:
    module, _, attribute = name.rpartition(".")
    setattr(model.get_submodule(module), attribute, parameter)
