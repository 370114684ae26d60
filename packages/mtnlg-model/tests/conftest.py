"""One thread, so that tests that fork have no thread pool to lose and machines with many cores compute the same."""

import torch

torch.set_num_threads(1)
