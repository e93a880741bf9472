"""What every test shares: one torch thread, so that tests run side by side do not fight for cores."""

import torch

torch.set_num_threads(1)
