"""Files that a program wrote wrong, or to do harm, with the right sum: refused, or one model in every form."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import torch
from mutants import Base, bases, loaded, mutant
from torch import Tensor, nn

import gatewise as gw
from gatewise.export import CheckpointError
from gatewise.export.saved.file import read_file

MUTANTS = (150, 10_000)  # usual and --long


def answer(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        y = model.eval()(x)
    y = y[0] if isinstance(y, tuple) else y
    assert isinstance(y, Tensor)
    return y


def engine_agrees(model: nn.Module, x: Tensor, y: Tensor) -> bool:
    """Whether the engine gives the same answer, or says that it has none."""
    try:
        other = gw.Engine(model)(x)[0]
    except (TypeError, ValueError) as error:
        return bool(str(error))
    return torch.allclose(other, y, rtol=1e-4, atol=1e-5, equal_nan=True)


def outcome(file: Path, base: Base, original: Tensor) -> str:
    """refused, the same answer, or another model that is the same in every form."""
    _, into, x = base
    try:
        model = loaded(file, into())
    except CheckpointError:
        return "refused"
    try:
        y = answer(model, x)
    except (IndexError, RuntimeError, ValueError):
        return "another model"  # of fewer words or inputs than x has, of other types
    if torch.equal(y, original):
        return "the same answer"
    assert engine_agrees(model, x, y), "torch and the engine read the file differently"
    again = gw.save(model, file.with_name("again")).path
    assert torch.equal(answer(gw.load(again, into()), x), y)
    return "another model"


def test_mutated_files(tmp_path: Path, pytestconfig: Any, campaign: Any) -> None:
    """0 errors but CheckpointError, no load of more than four times its file + 200 MB, no answer that differs."""
    count, found, known = MUTANTS[pytestconfig.getoption("--long")], Counter[str](), list(bases().items())
    saved: list[Any] = []
    for name, base in known:
        torch.manual_seed(0)
        file = gw.save(base[0](), tmp_path / name).path
        saved.append((*read_file(file), answer(gw.load(file, base[1]()), base[2])))
    for seed in range(count):
        k = seed % len(known)
        config, tensors, original = saved[k]
        file = tmp_path / "mutant.safetensors"
        file.write_bytes(mutant(seed, config, tensors))
        try:
            found[outcome(file, known[k][1], original)] += 1
        except BaseException as error:
            raise AssertionError(f"mutant {seed} of {known[k][0]!r}") from error
    assert found["refused"] > count / 2
    campaign(f"{count} mutated files: " + ", ".join(f"{n} {what}" for what, n in sorted(found.items())))
