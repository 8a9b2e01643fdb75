"""The model and the data: scikit-learn's 1,797 handwritten digits of 8x8 pixels, which come inside its package."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TEST_IMAGES = 297


class Net(nn.Module):
    """A small CNN for 8x8 grey images and ten classes."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 12, 3, padding=1)
        self.conv2 = nn.Conv2d(12, 24, 3, padding=1)
        self.fc = nn.Linear(24 * 4 * 4, 10)

    def forward(self, x):
        """(batch, 1, 8, 8) in [0, 1] -> (batch, 10)."""
        x = torch.relu(self.conv1(x))
        x = torch.max_pool2d(torch.relu(self.conv2(x)), 2)
        return self.fc(x.flatten(1))


def digits():
    """All images in [0, 1] and their classes, shuffled once and for all."""
    x, y = load_digits(return_X_y=True)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    return torch.tensor(x / 16, dtype=torch.float32).view(-1, 1, 8, 8)[order], torch.tensor(y)[order]


def test_data():
    """The images that no client trains on."""
    x, y = digits()
    return x[:TEST_IMAGES], y[:TEST_IMAGES]


def train_loader(client, clients, batch_size, at_most, seed):
    """Every `clients`-th training image, from number `client` on."""
    x, y = digits()
    x, y = x[TEST_IMAGES + client :: clients], y[TEST_IMAGES + client :: clients]
    data = TensorDataset(x[: at_most or None], y[: at_most or None])
    return DataLoader(data, batch_size, shuffle=True, generator=torch.Generator().manual_seed(seed))


def accuracy(model, x, y):
    """The share of images whose class the model finds."""
    model.eval()
    with torch.no_grad():
        return (model(x).argmax(1) == y).float().mean().item()
