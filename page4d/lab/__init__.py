"""The laboratory: synthetic captures, training, pretraining and benchmarks. No other package imports it."""
