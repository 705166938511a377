"""The paper's tasks: data, networks, recipes and the trainer; the same for your own files.

language        word and character streams: word_ptb, char_ptb, text_file; Windows and Chunks cut them
classification  imdb, ag_news, csv_texts
series          npz_series: numbers instead of symbols
encoding        what the inputs and outputs of a trained model mean: load_encoding(folder).encode(text)
vectors         pretrained rows for an embedding
models          the paper's five networks
recipe          a training run written down; one file per row of the paper's tables
trainer         train(recipe): from a recipe to a compact model and its numbers
saved           quality and counts of a saved model, from the data again
"""

from gatewise.tasks.batches import epoch_generator
from gatewise.tasks.encoding import Encoding, load_encoding
from gatewise.tasks.sources import DataError

__all__ = ["DataError", "Encoding", "epoch_generator", "load_encoding"]
