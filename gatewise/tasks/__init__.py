"""The paper's tasks: data, networks, recipes and the trainer; the same for your own files.

recipe      a training run written down; one file per row of the paper's tables
models      the paper's five networks; initial: their starting values
data        corpora and your own files, as numbers
training    train(recipe): from a recipe to a compact model and its numbers
finished    runs that are over: judged again, drawn, set beside the paper's
files       files that are whole or absent; provenance: where a number comes from
demo        the tour
"""

from gatewise.tasks.data.batches import epoch_generator
from gatewise.tasks.data.encoding import Encoding, load_encoding
from gatewise.tasks.data.sources import DataError

__all__ = ["DataError", "Encoding", "epoch_generator", "load_encoding"]
