"""The client: train on its own digits, reply with the new weights."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch.nn.functional import cross_entropy

from quickstart.task import Net, train_loader

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """One round of local training."""
    config, server_round = context.run_config, message.content["config"]["server-round"]
    client, clients = context.node_config["partition-id"], context.node_config["num-partitions"]
    seed = config["seed"] + 1000 * server_round + client
    loader = train_loader(client, clients, config["batch-size"], config["client-images"], seed)

    model = Net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=config["learning-rate"])
    for _ in range(config["local-epochs"]):
        for images, labels in loader:
            optimizer.zero_grad()
            cross_entropy(model(images), labels).backward()
            optimizer.step()

    metrics = MetricRecord({"num-examples": len(loader.dataset)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)
