"""The paper's tasks: where their data comes from and how it becomes batches; the same for your own files.

language        word and character streams: word_ptb, char_ptb, text_file; Windows and Chunks cut them
classification  imdb, ag_news, csv_texts
series          npz_series: numbers instead of symbols
vectors         pretrained rows for an embedding
"""

from gatewise.tasks.batches import epoch_generator
from gatewise.tasks.sources import DataError

__all__ = ["DataError", "epoch_generator"]
