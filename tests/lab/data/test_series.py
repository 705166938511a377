"""Numeric sequences from .npz files: targets, padding, scaling, splits, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gatewise.lab.data.series import npz_series
from gatewise.lab.data.sources import DataError


def save(folder: Path, **arrays: Any) -> Path:
    np.savez(folder / "mine.npz", **arrays)
    return folder / "mine.npz"


def sequences(n: int, steps: int = 5, inputs: int = 2) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).normal(3.0, 2.0, (n, steps, inputs))


def test_classes_with_parts_given(tmp_path: Path) -> None:
    """Sequences are moved to the right end; scaling uses the real steps of train only."""
    x = np.array([[1.0, 3.0, np.nan], [5.0, 7.0, 9.0]])  # the NaN lies on padding
    path = save(tmp_path, x=x, y=[0, 1], lengths=[2, 3], x_valid=x[1:], y_valid=[1], x_test=x[1:], y_test=[0])
    data = npz_series(path)
    assert (data.kind, data.n_inputs, data.n_outputs, data.every_step) == ("classification", 1, 2, False)
    mean, scale = 5.0, 8.0**0.5  # of 1 3 5 7 9
    assert data.mean.tolist() == [mean]
    assert data.scale.tolist() == pytest.approx([scale])
    raw = (data.train.inputs * data.scale + data.mean).float()
    order = data.train.targets.tolist()
    assert sorted(order) == [0, 1]
    short = order.index(0)
    torch.testing.assert_close(raw[short, 1:, 0], torch.tensor([1.0, 3.0]))
    assert data.train.inputs[short, 0, 0] == 0
    assert data.train.mask()[short].tolist() == [False, True, True]
    torch.testing.assert_close(raw[1 - short, :, 0], torch.tensor([5.0, 7.0, 9.0]))


def test_without_y_the_next_step_is_the_target(tmp_path: Path) -> None:
    data = npz_series(save(tmp_path, x=sequences(20), lengths=np.arange(20) % 4 + 2))
    assert (data.kind, data.n_inputs, data.n_outputs, data.every_step) == ("forecasting", 2, 2, True)
    assert data.train.inputs.shape[1:] == (4, 2)
    for part in (data.train, data.valid, data.test):
        mask = part.mask()
        both = mask[:, :-1]  # from the second real step on, an input is the target of the step before
        torch.testing.assert_close(part.inputs[:, 1:][both], part.targets[:, :-1][both])
        assert not part.targets[~mask].any()
    assert (len(data.train), len(data.valid), len(data.test)) == (15, 3, 2)


def test_parts_are_split_off_by_the_seed_and_do_not_overlap(tmp_path: Path) -> None:
    x = np.arange(40.0)[:, None, None] * np.ones((1, 3, 1))
    path = save(tmp_path, x=x, y=np.arange(40) % 2)
    data, again, other = npz_series(path), npz_series(path), npz_series(path, seed=1)
    values = [part.inputs[:, 0, 0] * data.scale + data.mean for part in (data.train, data.valid, data.test)]
    assert [len(part) for part in values] == [30, 6, 4]
    assert sorted(round(float(v)) for v in torch.cat(values)) == list(range(40))
    assert torch.equal(data.train.inputs, again.train.inputs)
    assert not torch.equal(data.train.inputs, other.train.inputs)


@pytest.mark.parametrize("every_step", [False, True])
def test_numbers_to_forecast_at_the_end_or_at_every_step(tmp_path: Path, every_step: bool) -> None:
    y = np.arange(20.0 * (5 if every_step else 1) * 3).reshape((20, 5, 3) if every_step else (20, 3))
    data = npz_series(save(tmp_path, x=sequences(20), y=y))
    assert (data.kind, data.n_outputs, data.every_step) == ("forecasting", 3, every_step)
    assert data.train.targets.shape == ((15, 5, 3) if every_step else (15, 3))
    assert data.train.targets.dtype == torch.float32


def test_a_long_series_is_split_by_time_and_cut_into_windows(tmp_path: Path) -> None:
    """100 points: 80 / 10 / 10; windows of 3 steps share end points: 79 // 3 = 26 of them, 9 // 3 = 3."""
    data = npz_series(save(tmp_path, series=np.arange(100.0)), valid_fraction=0.1, steps=3)
    assert [len(part) for part in (data.train, data.valid, data.test)] == [26, 3, 3]
    points = (data.train.targets * data.scale + data.mean)[:, :, 0]
    torch.testing.assert_close(points.flatten().float(), torch.arange(1.0, 79.0))
    first_of_test = data.test.inputs[0, 0] * data.scale + data.mean
    torch.testing.assert_close(first_of_test.float(), torch.tensor([90.0]))


def test_classes_with_gaps_take_no_scores_of_their_own(tmp_path: Path) -> None:
    """Classes 0 and 5 are two, not six; one that training never sees is named."""
    data = npz_series(save(tmp_path, x=sequences(20), y=np.arange(20) % 2 * 5))
    assert (data.n_outputs, data.classes) == (2, (0, 5))
    assert sorted(set(data.train.targets.tolist())) == [0, 1]
    path = save(tmp_path, x=sequences(20), y=np.arange(20) % 2 * 5, x_test=sequences(2), y_test=[0, 3])
    with pytest.raises(DataError, match=r"training must see them all, class 3 too"):
        npz_series(path)


def test_a_constant_input_is_not_divided_by_zero(tmp_path: Path) -> None:
    """0.1 is not a binary number, so that its mean is off by a rounding, and its deviation would be that."""
    x = sequences(20)
    x[:, :, 1] = 0.1
    data = npz_series(save(tmp_path, x=x))
    assert data.scale[1] == 1
    assert not data.train.inputs[:, :, 1].any()


def test_large_numbers_are_scaled_before_they_are_rounded(tmp_path: Path) -> None:
    """Dates in seconds are 128 apart in float32."""
    seconds = 1.7e9 + np.arange(100.0)
    large, small = (npz_series(save(tmp_path, series=s), 0.1, steps=3) for s in (seconds, np.arange(100.0)))
    torch.testing.assert_close(large.train.inputs, small.train.inputs)
    torch.testing.assert_close(large.mean - 1.7e9, small.mean)


def test_a_file_of_its_own_is_one_part(tmp_path: Path) -> None:
    """It goes before the arrays of that part, and an error about it names it."""
    whole = save(tmp_path, x=GOOD, x_test=GOOD[:9])
    np.savez(tmp_path / "b.npz", x=GOOD[:5], lengths=np.full(5, 4))
    data = npz_series(whole, test=tmp_path / "b.npz")
    assert data.test.lengths.tolist() == [3] * 5
    assert len(data.train) + len(data.valid) == 20
    np.savez(tmp_path / "b.npz", x=HOLE)
    with pytest.raises(DataError, match=r"mine\.npz, test .*b\.npz: x_test is NaN or infinite"):
        npz_series(whole, test=tmp_path / "b.npz")
    np.savez(tmp_path / "b.npz", series=np.zeros(50))
    with pytest.raises(DataError, match=r"b\.npz: holds series_test, x: either series, or x, y and lengths"):
        npz_series(whole, test=tmp_path / "b.npz")
    np.savez(tmp_path / "b.npz", x=GOOD, x_test=GOOD)
    with pytest.raises(DataError, match=r"b\.npz: holds x_test; a file that is the valid part as a whole"):
        npz_series(whole, valid=tmp_path / "b.npz")


def test_data_moves_to_a_device_as_a_whole(tmp_path: Path) -> None:
    data = npz_series(save(tmp_path, x=sequences(20))).to("meta")
    assert {part.inputs.device.type for part in (data.train, data.valid, data.test)} == {"meta"}


GOOD = sequences(20)
HOLE = GOOD.copy()
HOLE[4, 2, 1] = np.nan
BIG = GOOD.copy()
BIG[4, 2, 1] = 1e300


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"z": GOOD}, r"holds arrays \['z'\]; it needs x"),
        ({"x": GOOD, "w": GOOD}, r"holds arrays \['w', 'x'\]"),
        ({"x": GOOD, "y_test": np.zeros(3)}, r"holds y_test, but no x_test"),
        ({"x": GOOD, "lengths_test": np.full(3, 5)}, r"holds lengths_test, but no x_test"),
        ({"x": np.zeros(5)}, r"x has shape \(5,\); it must be \(N, T, I\)"),
        ({"x": np.zeros((0, 5))}, r"nothing empty"),
        ({"x": np.full((4, 4), "a")}, r"x holds <U1; it must hold real numbers"),
        ({"x": HOLE}, r"x is NaN or infinite at 1 of 100 real steps, first at sequence 4, step 2"),
        ({"x": BIG}, r"first at sequence 4, step 2"),
        ({"x": GOOD, "lengths": np.zeros(20, int)}, r"lengths\[0\] is 0; x allows 2 to 5"),
        ({"x": GOOD, "lengths": np.full(20, 6)}, r"lengths\[0\] is 6"),
        ({"x": GOOD, "lengths": np.full(20, 2.5)}, r"lengths is float64 of shape \(20,\)"),
        ({"x": GOOD, "lengths": np.full(19, 2)}, r"must be whole numbers, \(20,\)"),
        ({"x": GOOD, "y": np.zeros(19, int)}, r"y has shape \(19,\)"),
        ({"x": GOOD, "y": np.zeros((20, 4, 1))}, r"y has shape \(20, 4, 1\)"),
        ({"x": GOOD, "y": np.zeros(20)}, r"for numbers to forecast give it the shape \(N, 1\)"),
        ({"x": GOOD, "y": np.full((20, 1), np.inf)}, r"y is NaN or infinite at 20 of 20"),
        ({"x": GOOD, "y": np.zeros(20, int)}, r"there must be at least 2"),
        ({"x": GOOD, "x_test": GOOD[:, :, :1]}, r"the parts differ in their number of inputs"),
        (
            {"x": GOOD[:3]},
            r"3 sequences are too few to split off 10% for test\. Give x_test, or more sequences",
        ),
        ({"x": GOOD[:3], "x_test": GOOD}, r"for valid\. Give x_valid, a larger valid_fraction, or more"),
        ({"x": GOOD[:, :1]}, r"x has sequences of 1 step; without y the next step is to be predicted, so 2"),
        ({"series": np.zeros(900)}, r"test has 90 points, too few for a window of 100 steps"),
        ({"series": np.zeros((5, 5, 5))}, r"series has shape"),
        ({"series": np.zeros(500), "y": np.zeros(500)}, r"y, but no x"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        npz_series(save(tmp_path, **arrays))


def test_a_file_without_classes_is_none_for_a_classifier(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has no classes y of shape \(N,\), but the model tells 2 apart"):
        npz_series(save(tmp_path, x=GOOD), classes=(0, 1))


def test_files_that_are_not_npz_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.npz: cannot be read"):
        npz_series(tmp_path / "none.npz")
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(DataError, match=r"text\.npz: cannot be read"):
        npz_series(tmp_path / "text.npz")
    np.save(tmp_path / "one.npy", GOOD)
    with pytest.raises(DataError, match=r"holds one array without a name"):
        npz_series(tmp_path / "one.npy")
    ragged = np.empty(2, dtype=object)
    ragged[:] = [[1, 2], [3]]
    with pytest.raises(DataError, match=r"different lengths go into one padded array"):
        npz_series(save(tmp_path, x=ragged))
    with pytest.raises(DataError, match=r"valid_fraction 0\.9"):
        npz_series(save(tmp_path, x=GOOD), valid_fraction=0.9)
