"""Which scene is which seed: training takes the even seeds, everything that judges a network takes the odd ones.

Seeds stay below 2^32: generators that keep only 32 bits of a seed would otherwise mix the two up.
"""

_HALF = 2**31
_SPREAD = 0x9E3779B1
"""Odd, so that different runs start at different places of the circle of training seeds.

Source: Knuth, The Art of Computer Programming 3, section 6.4 (the golden ratio times 2^32).
"""


def training_seed(run_seed: int, sample: int) -> int:
    """Return the seed of a run's sample; distinct for 2^31 samples in a row."""
    return 2 * ((run_seed * _SPREAD + sample) % _HALF)


def held_out_seed(index: int) -> int:
    """Return the seed of a scene that no run trains on; the same for every run."""
    if not 0 <= index < _HALF:
        raise ValueError(f"held-out scene {index}")
    return 2 * index + 1
