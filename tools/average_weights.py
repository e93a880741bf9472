"""Average the weights of a network with those of a run that continued its training.

    python tools/average_weights.py START.safetensors RUN/weights.safetensors OUT.safetensors --share 0.5

writes (1 - share) START + share RUN in fp16, with the provenance of both and the out-of-distribution limits of the
average. Between a network and its fine-tuned copy the loss is almost convex: the average keeps most of what the
start can do and most of what the run has learnt.

Source: Wortsman et al. (2022), "Robust fine-tuning of zero-shot models" (WiSE-FT).
"""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import torch

import page4d
from page4d.errors import Page4DError, UsageError
from page4d.lab.training.config import TrainConfig
from page4d.lab.training.validation import find_ood_limits
from page4d.weights.loading import LoadedNetwork, load
from page4d.weights.store import save_network


def averaged(start: LoadedNetwork, run: LoadedNetwork, share: float) -> LoadedNetwork:
    """Return the first network with the average of both weights; `share` is that of the second.

    Raises:
        UsageError: if the networks have different configurations.
    """
    if start.config != run.config:
        raise UsageError("the networks have different configurations", "give a network and a run that began from it")
    others = run.state_dict()
    mixed = {
        name: torch.lerp(own, others[name], share) if own.is_floating_point() else own
        for name, own in start.state_dict().items()
    }
    start.load_state_dict(mixed)
    return start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("start", type=Path)
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--share", type=float, default=0.5, help="share of the run, 0 to 1 (default 0.5)")
    parser.add_argument("--description", default="", help="what the file holds")
    options = parser.parse_args()
    start, run = load(options.start, "cpu"), load(options.run, "cpu")
    metadata, origin = dict(run.info.metadata), start.info.metadata
    network = averaged(start, run, options.share).half().float()  # as it is stored
    config = TrainConfig.from_json(metadata["training"])
    limits = find_ood_limits(network, config.evaluation, torch.device("cpu"))
    metadata |= {
        "description": options.description or f"{origin['description']}, averaged with a run from it",
        "made_by": f"page4d {page4d.__version__}, torch {torch.__version__}",
        "domain": limits.to_json(),
        "history_average": (
            f"{1 - options.share:g} of the weights {start.info.sha256} and {options.share:g} of the run under"
            f" 'training', which began from them"
        ),
    }
    metadata |= {name: text for name, text in origin.items() if name.startswith("history_") and name not in metadata}
    metadata["history_start"] = f"{origin['description']}: {origin.get('command', '')}"
    save_network(network.half(), options.out, metadata)


if __name__ == "__main__":
    try:
        main()
    except Page4DError as error:
        sys.exit(str(error))
