"""One thread is enough for pictures of this size, and leaves the others to other tests."""

import torch

torch.set_num_threads(1)
