"""Run command lines in forked children of one process, and print the predicted and the measured memory of each.

    python -m tests.cli.peaks WORDS... [-- WORDS...]...

The outputs are named by --out in the words. This process loads everything once and never starts a thread.
"""

import json
import sys
from itertools import groupby
from pathlib import Path

import torch

from tests.cli.kills import begin, end


def main(commands: list[list[str]]) -> None:
    """Run all commands."""
    torch.set_num_threads(1)
    found = []
    for words in commands:
        assert end(begin([*words, "--overwrite"]))
        record = json.loads((Path(words[words.index("--out") + 1]) / "run.json").read_text())
        found.append((record["predicted_peak_memory_bytes"], record["peak_memory_bytes"]))
    print(json.dumps(found))


if __name__ == "__main__":
    main([list(words) for is_break, words in groupby(sys.argv[1:], lambda word: word == "--") if not is_break])
