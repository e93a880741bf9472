"""Export of an output folder to the formats of other tools."""
