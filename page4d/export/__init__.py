"""The output contract: what a run writes, and how it is read back. Nothing here knows a network."""
