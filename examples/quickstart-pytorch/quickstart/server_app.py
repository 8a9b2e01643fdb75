"""The server: federated averaging, with a look at the test images after each round."""

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from quickstart.task import Net, accuracy, test_data

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for some rounds and keep the result."""
    config = context.run_config
    torch.manual_seed(config["seed"])
    model = Net()
    strategy = FedAvg(fraction_evaluate=0.0)
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(model.state_dict()),
        num_rounds=config["num-server-rounds"],
        evaluate_fn=evaluate,
    )
    if config["save-to"]:
        np.savez(config["save-to"], **{name: array.numpy() for name, array in result.arrays.items()})


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Accuracy on the test images."""
    model = Net()
    model.load_state_dict(arrays.to_torch_state_dict())
    return MetricRecord({"accuracy": accuracy(model, *test_data())})
