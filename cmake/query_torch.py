"""Print where PyTorch lives, its version and its CUDA version, as one CMake list."""

import os

import torch

print(
    os.path.dirname(torch.__file__),
    torch.__version__.split("+")[0],
    torch.version.cuda or "none",
    sep=";",
)
