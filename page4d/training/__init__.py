"""Training of any network of the family: on endless synthetic captures, on folders with truth, or on both."""
