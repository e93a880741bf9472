"""Tests of the synthetic capture run on one thread: their images are too small to share."""

import torch

torch.set_num_threads(1)
