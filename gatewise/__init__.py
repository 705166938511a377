"""Learn which weights, gates and neurons an LSTM or GRU needs, cut the rest out, run what is left."""
