"""Corpora and your own files, as numbers.

sources         where the corpora come from: a folder of yours, or a cache that fills itself
texts           texts with classes as they lie in files
language        word and character streams: word_ptb, char_ptb, text_file
cuts            such streams in batches: Windows and Chunks
classification  imdb, ag_news, csv_texts
pronunciation   cmudict: words and their phonemes
series          npz_series: numbers instead of symbols
batches         which rows make up which batch
encoding        what the inputs and outputs of a trained model mean: load_encoding(folder).encode(text)
vectors         pretrained rows for an embedding
corpus          load_data(recipe): all of these by name
"""
