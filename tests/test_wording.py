"""How messages and reports say numbers."""

from gatewise.wording import counted


def test_one_thing_is_singular() -> None:
    said = [counted(1, "neuron"), counted(2000, "neuron"), counted(0, "class"), counted(1, "class")]
    assert said == ["1 neuron", "2,000 neurons", "0 classes", "1 class"]
