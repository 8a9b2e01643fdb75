"""Named tensors as one vector."""

import torch


def flat(tensors):
    return torch.cat([value.reshape(-1) for value in tensors.values()])
