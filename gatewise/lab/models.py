"""The networks of the paper's tasks, and one for numbers instead of symbols.

    WordLM          ids (T, B) -> embedding -> recurrent stack -> scores of the next word (T, B, V)
    CharLM          ids (T, B) -> one-hot   -> recurrent layer -> scores of the next character (T, B, V)
    TextClassifier  ids (B, T) -> embedding -> recurrent layer -> last position -> scores of the classes (B, O)
    SeriesModel     numbers (B, T, I)       -> recurrent layer -> last position, or every one -> (B, O) or (B, T, O)
    Pronouncer      ids (B, T) -> embedding -> encoder -> its last state starts a decoder -> phonemes (B, longest)

Language models take the state of the window before and hand theirs back. Classifiers get texts padded on the left
and a mask, so the last position is always the last word. `config()` is what a constructor needs to build the same
network again.

An LSTM of the paper has one bias vector per gate, torch's has two that are added. The second is zero here and not
trained: two equal gradients would make plain SGD move their sum twice as fast.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gatewise.nn import GRU, LSTM, Attention, Recurrent, greedy_decode
from gatewise.nn.decoding import decoded

CELLS: dict[str, type[Recurrent]] = {"LSTM": LSTM, "GRU": GRU}
State = Tensor | tuple[Tensor, ...]


def recurrent(cell: str, input_size: int, hidden: int, layers: int, **options: Any) -> Recurrent:
    """A stack by the name of its cell."""
    if cell not in CELLS:
        raise ValueError(f"cell={cell!r} is not one of {', '.join(CELLS)}.")
    rnn = CELLS[cell](input_size, hidden, layers, **options)
    if cell == "LSTM":  # the GRU's second bias is a parameter of its own: r multiplies a part of it
        for name, bias in rnn.named_parameters():
            if name.startswith("bias_hh"):
                nn.init.zeros_(bias.requires_grad_(False))
    return rnn


def stacks_of(model: nn.Module) -> list[Recurrent]:
    """The recurrent stacks of a task model, dense, with noise or compact."""
    return [module for module in model.modules() if isinstance(module, Recurrent)]


def stack_of(model: nn.Module) -> Recurrent:
    """The one that there is."""
    (found,) = stacks_of(model)
    return found


def read(rnn: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
    """Outputs of every step. Without a mask the call is one that torch.nn's stacks understand, too."""
    out: Tensor = (rnn(x) if mask is None else rnn(x, mask=mask))[0]
    return out


class TaskModel(nn.Module):
    """A network that knows how it was built."""

    drops_between_layers = False  # of its recurrent stack

    def __init__(self, given: Mapping[str, Any]) -> None:
        """`given`: the locals() of a constructor that has only its arguments."""
        super().__init__()
        self._config = {name: value for name, value in given.items() if name not in ("self", "__class__")}

    def set_dropout(self, p: float) -> None:
        """Another probability wherever the constructor's one is used."""
        if "dropout" in self._config:
            self._config["dropout"] = p
        for module in self.modules():
            if isinstance(module, nn.Dropout):
                module.p = p
            elif isinstance(module, Recurrent) and self.drops_between_layers:
                module.dropout = p if module.num_layers > 1 else 0.0

    def config(self) -> dict[str, Any]:
        """Keyword arguments of the constructor."""
        return dict(self._config)


class WordLM(TaskModel):
    """Word language model; dropout on the embedding's output and on every layer's output, never in time."""

    drops_between_layers = True

    def __init__(
        self,
        vocabulary: int,
        embedding: int = 200,
        hidden: int = 200,
        layers: int = 2,
        dropout: float = 0.0,
        cell: str = "LSTM",
    ) -> None:
        super().__init__(locals())
        self.emb = nn.Embedding(vocabulary, embedding)
        self.rnn = recurrent(cell, embedding, hidden, layers, dropout=dropout if layers > 1 else 0.0)
        self.drop = nn.Dropout(dropout)
        self.fc = nn.Linear(hidden, vocabulary)

    def forward(self, ids: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        out, state = self.rnn(self.drop(self.emb(ids)), state)
        return self.fc(self.drop(out)), state


class CharLM(TaskModel):
    """Character language model: the input matrix is read by a one-hot vector, there is no embedding."""

    def __init__(self, vocabulary: int, hidden: int = 1000, layers: int = 1, cell: str = "LSTM") -> None:
        super().__init__(locals())
        self.vocabulary = vocabulary
        self.rnn = recurrent(cell, vocabulary, hidden, layers)
        self.fc = nn.Linear(hidden, vocabulary)

    def forward(self, ids: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        out, state = self.rnn(F.one_hot(ids, self.vocabulary).float(), state)
        return self.fc(out), state


class TextClassifier(TaskModel):
    """Text classifier; one score per text stands for two classes (its sign), more for as many classes."""

    def __init__(
        self,
        vocabulary: int,
        outputs: int,
        embedding: int = 300,
        hidden: int = 128,
        layers: int = 1,
        dropout: float = 0.0,
        cell: str = "LSTM",
        gate_activation: str = "hard_sigmoid",
    ) -> None:
        super().__init__(locals())
        self.emb = nn.Embedding(vocabulary, embedding)
        self.rnn = recurrent(
            cell, embedding, hidden, layers, batch_first=True, gate_activation=gate_activation
        )
        self.drop = nn.Dropout(dropout)
        self.fc = nn.Linear(hidden, outputs)

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        out = read(self.rnn, self.drop(self.emb(ids)), mask)
        scores: Tensor = self.fc(self.drop(out[:, -1]))
        return scores


class SeriesModel(TaskModel):
    """Numbers in, scores or numbers out: at the end of each sequence, or at every step."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        every_step: bool = False,
        hidden: int = 128,
        layers: int = 1,
        dropout: float = 0.0,
        cell: str = "LSTM",
        gate_activation: str = "sigmoid",
    ) -> None:
        super().__init__(locals())
        self.every_step = every_step
        self.rnn = recurrent(cell, inputs, hidden, layers, batch_first=True, gate_activation=gate_activation)
        self.drop = nn.Dropout(dropout)
        self.fc = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        out = read(self.rnn, x, mask)
        if not self.every_step:
            out = out[:, -1]
        answer: Tensor = self.fc(self.drop(out))
        return answer


class Pronouncer(TaskModel):
    """An encoder reads the letters of a word, a decoder that starts from its last state says phonemes.

    A call answers: the decoder reads its own phonemes. With `phonemes` (B, L) it gives scores of each of them,
    (B, L, phonemes), with those before it given; only then there is dropout. With a bidirectional encoder `bridge`
    makes the state of both directions one. `backwards`, the encoder ends with the first letter, which the first
    phoneme needs. With `attention` the decoder looks at the encoder's outputs: each letter votes for phonemes, and is
    found by a key of so many numbers.
    """

    drops_between_layers = True

    def __init__(
        self,
        letters: int,
        phonemes: int,
        start: int,
        end: int,
        longest: int,
        embedding: int = 256,
        hidden: int = 256,
        layers: int = 1,
        dropout: float = 0.0,
        cell: str = "GRU",
        gate_activation: str = "sigmoid",
        bidirectional: bool = False,
        backwards: bool = False,
        attention: int = 0,
    ) -> None:
        super().__init__(locals())
        self.start, self.end, self.longest, self.backwards = start, end, longest, backwards
        stack: dict[str, Any] = {"batch_first": True, "gate_activation": gate_activation}
        stack["dropout"] = dropout if layers > 1 else 0.0
        self.emb = nn.Embedding(letters, embedding)
        self.encoder = recurrent(cell, embedding, hidden, layers, bidirectional=bidirectional, **stack)
        parts = self.encoder.cell.n_states if bidirectional else 0
        self.bridge = nn.ModuleList(nn.Linear(2 * hidden, hidden) for _ in range(parts))
        self.phoneme_emb = nn.Embedding(phonemes, embedding)
        self.decoder = recurrent(cell, embedding, hidden, layers, **stack)
        self.drop = nn.Dropout(dropout)
        self.fc = nn.Linear(hidden, phonemes)
        if attention:
            self.query = nn.Linear(hidden, attention)
            self.key = nn.Linear(self.encoder.hidden_size * (1 + bidirectional), attention)
            self.vote = nn.Linear(self.key.in_features, phonemes)

    # With a star: back ends, which only answer, take any argument that may be None for one of theirs.
    def forward(self, letters: Tensor, mask: Tensor | None = None, *phonemes: Tensor) -> Tensor:
        if phonemes:
            return self.taught(letters, mask, *phonemes)
        state, attention = self.read_word(self.emb(letters), mask)
        return greedy_decode(
            self.phoneme_emb,
            self.decoder,
            self.fc,
            state,
            start=self.start,
            end=self.end,
            longest=self.longest,
            attention=attention,
        )

    def taught(self, letters: Tensor, mask: Tensor | None, phonemes: Tensor) -> Tensor:
        state, attention = self.read_word(self.drop(self.emb(letters)), mask)
        before = torch.cat([torch.full_like(phonemes[:, :1], self.start), phonemes[:, :-1]], dim=1)
        # On a CPU the steps behind the end are skipped. The fused kernels of a GPU know no mask.
        ended = (phonemes == self.end).cumsum(1) > (phonemes == self.end)
        steps = {"mask": ~ended} if phonemes.is_cpu else {}
        out = self.drop(self.decoder(self.drop(self.phoneme_emb(before)), state, **steps)[0])
        scores: Tensor = self.fc(out)
        return scores if attention is None else scores + attention(out)

    def read_word(self, x: Tensor, mask: Tensor | None) -> tuple[State, Attention | None]:
        """The last state of the encoder, as the decoder takes it, and what the decoder looks at."""
        if self.backwards:
            x, mask = x.flip(1), None if mask is None else mask.flip(1)
        out, state = self.encoder(x) if mask is None else self.encoder(x, mask=mask)
        attention = None
        if self._config["attention"]:
            seen = self.drop(out)
            attention = Attention(self.query, self.key(seen), self.vote(seen), mask)
        if not len(self.bridge):
            return state, attention
        parts = (state,) if isinstance(state, Tensor) else state
        mixed = tuple(
            bridge(torch.cat([part[0::2], part[1::2]], dim=-1)).tanh()
            for bridge, part in zip(self.bridge, parts)
        )
        return mixed if len(mixed) > 1 else mixed[0], attention


class WordReader(nn.Module):
    """What a Pronouncer reads before it speaks: the decoder's first state, and with attention keys and votes."""

    def __init__(self, whole: Pronouncer) -> None:
        super().__init__()
        self.whole = whole

    def forward(self, letters: Tensor) -> tuple[Any, ...]:  # (B, T)
        state, attention = self.whole.read_word(self.whole.emb(letters), None)
        return (state,) if attention is None else (state, attention.keys, attention.votes)


class NextPhoneme(nn.Module):
    """One step of a Pronouncer's decoder: the likeliest phonemes behind these, and the next state."""

    def __init__(self, whole: Pronouncer) -> None:
        super().__init__()
        self.whole = whole

    def forward(
        self, phonemes: Tensor, state: Any, keys: Tensor | None = None, votes: Tensor | None = None
    ) -> tuple[Tensor, Any]:  # (B)
        whole = self.whole
        attention = None if keys is None or votes is None else Attention(whole.query, keys, votes)
        return decoded(whole.phoneme_emb, whole.decoder, whole.fc, phonemes, state, attention)
