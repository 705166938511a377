"""Real English that every Python carries: the language reference, as `help("...")` prints it."""

from __future__ import annotations

import re
from pydoc_data.topics import topics

from gatewise.lab.data.language import LanguageData, from_texts

TOKEN = re.compile(r"[^\W\d]+(?:'[a-z]+)?|\d+|[^\w\s]")  # a word, a number, or one mark
BLOCK = 20  # paragraphs that stay together


def paragraphs() -> list[str]:
    """Every paragraph once, as tokens with blanks between them.

    Many topics quote others whole. Without removing repetitions, half of the validation text would also be
    training text. Lines without a letter (rulers, table borders) go too.
    """
    found: dict[str, None] = {}
    for name in sorted(topics):
        for paragraph in topics[name].split("\n\n"):
            lines = [line for line in paragraph.splitlines() if any(map(str.isalpha, line))]
            tokens = TOKEN.findall("\n".join(lines).lower())
            if tokens:
                found.setdefault(" ".join(tokens))
    return list(found)


def python_reference(vocabulary_size: int = 2000, n_blocks: int | None = None) -> LanguageData:
    """The language reference as three streams of words; each paragraph ends with <eos>.

    Of every ten blocks of 20 paragraphs, eight are for training, one for validation, one for test.
    `n_blocks` takes the first blocks only.
    """
    whole = paragraphs()
    blocks = [whole[k : k + BLOCK] for k in range(0, len(whole), BLOCK)][:n_blocks]
    parts: tuple[list[str], list[str], list[str]] = ([], [], [])
    for k, block in enumerate(blocks):
        parts[{4: 1, 9: 2}.get(k % 10, 0)].extend(block)
    train, valid, test = ("".join(line + "\n" for line in part) for part in parts)
    note = "text: Python's language reference (pydoc_data.topics), every paragraph once"
    return from_texts(train, valid, test, "word", vocabulary_size, note)
