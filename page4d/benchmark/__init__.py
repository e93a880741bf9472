"""What networks take on a device, beside what was foretold."""
