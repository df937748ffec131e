"""One thread: these tensors are tiny, and threads on a busy machine make the tests ten times slower."""

import torch

torch.set_num_threads(1)
