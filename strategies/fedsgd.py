"""FedSGD (McMahan et al. 2017): clients send raw gradients, the server averages them and takes one optimiser step."""

import logging
from collections.abc import Iterable
from typing import Literal, NamedTuple

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from torch import Tensor, nn

from fl_app.core.local import LocalRule, Tensors
from fl_app.core.wire import WireError, decoded, to_record, to_tensors
from strategies.optimizers import ServerOptimizer
from strategies.roster import Roster, one_line, sample_clients

log = logging.getLogger("thorns")
Weighting = Literal["examples", "equal"]


class Reply(NamedTuple):
    """A valid reply: who sent it, what it brings, how many examples it speaks for."""

    client: int
    update: Tensors
    num_examples: int


class Rejected(ValueError):
    """Why a reply is not used."""


def read_update(message: Message, like: Tensors, most: int, key: str = "num-examples") -> tuple[Tensors, int]:
    """(tensors as in `like`, number of examples up to `most`) of a reply; raises Rejected or WireError with the reason."""
    if message.has_error():
        raise Rejected(f"the client failed: {one_line(message.error.reason)}")
    records = list(message.content.values())
    arrays = [record for record in records if isinstance(record, ArrayRecord)]
    metrics = [record for record in records if isinstance(record, MetricRecord)]
    if len(arrays) != 1 or len(metrics) != 1:
        raise Rejected(f"it brings {len(arrays)} array and {len(metrics)} metric records, not one each")
    record, counts = arrays[0], metrics[0]
    if record.keys() != like.keys():
        missing, extra = sorted(like.keys() - record.keys()), sorted(record.keys() - like.keys())
        raise Rejected(f"wrong parameter names (missing {missing[:3]}, unknown {[name[:40] for name in extra[:3]]})")
    update = decoded(record)
    for name, expected in like.items():
        if update[name].shape != expected.shape:
            raise Rejected(f"{name} has the shape {tuple(update[name].shape)}, not {tuple(expected.shape)}")
        if update[name].dtype != expected.dtype:
            raise Rejected(f"{name} has the type {update[name].dtype}, not {expected.dtype}")
    number = counts.get(key)
    if not isinstance(number, int) or not 1 <= number <= most:
        raise Rejected(f"{key} is {one_line(repr(number), 40)}, not a whole number from 1 to {most}")
    return update, number


class FedSGD(Strategy):
    """Raw gradients in, weighted mean, server optimiser; invalid replies are left out and named in the log."""

    def __init__(
        self,
        rule: LocalRule,
        optimizer: ServerOptimizer,
        *,
        clients: int,
        seed: int = 0,
        fraction: float = 1.0,
        min_clients: int = 1,
        weighting: Weighting = "examples",
    ) -> None:
        self.rule, self.optimizer, self.seed = rule, optimizer, seed
        self.fraction, self.min_clients, self.weighting = fraction, min_clients, weighting
        self.roster = Roster(clients)
        self._asked: set[int] = set()
        self._published: ArrayRecord | None = None
        self._like: Tensors = {}
        # One flat vector: the optimiser and the mean each work on a single tensor, whatever the model.
        self._weights = nn.Parameter(torch.empty(0))
        self._mean = torch.empty(0)
        self._mean_views: Tensors = {}
        self._torch_optimizer: torch.optim.Optimizer | None = None
        self._restored: Tensors = {}
        self.last_counts: dict[str, int] = {}
        """accepted, rejected, applied: how the replies of the last round were used."""
        self.last_reasons: dict[str, str] = {}
        """Client -> why its reply of the last round was not used."""

    def summary(self) -> None:
        """Log the settings."""
        log.debug("%s: %s, %s, weighting by %s", type(self).__name__, self.rule, self.optimizer, self.weighting)

    def chosen(self, server_round: int) -> list[int]:
        """The clients of a round: a pure function of the seed."""
        return sample_clients(self.roster.expected, self.fraction, self.min_clients, self.seed, server_round)

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Iterable[Message]:
        """Send the weights, the rule and the round to the chosen clients."""
        if arrays is not self._published:
            self._load(to_tensors(arrays))
        connected = self.roster.connected(grid)
        missing = [client for client in self.chosen(server_round) if client not in connected]
        if missing:
            log.warning("round %d: clients %s are not connected", server_round, missing)
        nodes = [connected[client] for client in self.chosen(server_round) if client in connected]
        self._asked = set(nodes)
        settings = ConfigRecord({**config, **self.rule.to_dict(), "server-round": server_round})
        return [Message(RecordDict({"arrays": arrays, "config": settings}), node, MessageType.TRAIN) for node in nodes]

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Step along the mean of the valid replies; with too few of them the weights stay as they were."""
        valid, rejected = self._averaged(server_round, replies)
        applied = len(valid) >= max(1, self.min_clients)
        self.last_counts = {"accepted": len(valid), "rejected": rejected, "applied": int(applied)}
        metrics = MetricRecord(dict(self.last_counts))
        if not applied:
            log.warning(
                "round %d: %d valid replies, %d needed: the weights stay as they were",
                server_round,
                len(valid),
                max(1, self.min_clients),
            )
            return None, metrics
        return self._step(server_round), metrics

    def count(self, server_round: int, replies: Iterable[Message]) -> MetricRecord:
        """Check and count the replies of a round, and leave the weights as they are."""
        valid, rejected = self._averaged(server_round, replies)
        # Of a round that was not to change the weights it is not said that it did not, unless nobody answered.
        self.last_counts = {"accepted": len(valid), "rejected": rejected} | ({} if valid else {"applied": 0})
        return MetricRecord(dict(self.last_counts))

    def configure_evaluate(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Iterable[Message]:
        """Clients do not evaluate: a loss on private data is a leak of its own."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Nothing to aggregate."""
        return None

    def direction(self, mean: Tensor) -> Tensor:
        """The mean update as a gradient to descend along."""
        return mean

    def optimizer_state(self) -> Tensors:
        """What the optimiser remembers, for a checkpoint."""
        if self._torch_optimizer is None:
            return dict(self._restored)
        state = self._torch_optimizer.state[self._weights]
        return {key: torch.as_tensor(value).clone() for key, value in state.items() if value is not None}

    def finite(self) -> bool:
        """Whether the weights are finite; a sum is the cheapest look at all of them."""
        return self._torch_optimizer is None or bool(self._weights.detach().sum(dtype=torch.float64).isfinite())

    def restore_optimizer(self, state: Tensors) -> None:
        """Go on from a checkpoint; call before the first round."""
        self._restored = dict(state)

    def _load(self, params: Tensors) -> None:
        self._like = params
        flat = torch.cat([value.reshape(-1) for value in params.values()]) if params else torch.empty(0)
        with torch.no_grad():
            if self._torch_optimizer is None:
                self._weights = nn.Parameter(flat)
                self._torch_optimizer = self.optimizer.make(self._weights)
                if self._restored:
                    self._torch_optimizer.state[self._weights] = dict(self._restored)
            else:
                self._weights.copy_(flat)
        self._mean = torch.zeros_like(flat)
        self._mean_views = self._views(self._mean)

    def _views(self, flat: Tensor) -> Tensors:
        parts = flat.split([value.numel() for value in self._like.values()])
        return {name: part.view_as(value) for (name, value), part in zip(self._like.items(), parts, strict=True)}

    def _averaged(self, server_round: int, replies: Iterable[Message]) -> tuple[list[Reply], int]:
        """(the valid replies, whose mean is in `self._mean`; how many are not valid)."""
        self.last_reasons = {}
        valid, rejected = self._valid(server_round, replies)
        if valid and not self._average(valid):
            # Only now look which reply did it: checking each of them every round would cost more than the mean.
            finite = []
            for reply in valid:
                if all(bool(value.isfinite().all()) for value in reply.update.values()):
                    finite.append(reply)
                else:
                    self._warn(server_round, reply.client, "its update has values that are not finite")
            rejected += len(valid) - len(finite)
            valid = finite if finite and self._average(finite) else []
        return valid, rejected

    def _average(self, replies: list[Reply]) -> bool:
        """The weighted mean into `self._mean`; False if it is not finite. Summed by client, so the same on every engine."""
        weights = [reply.num_examples if self.weighting == "examples" else 1 for reply in replies]
        self._mean.zero_()
        total = sum(weights)
        for reply, weight in zip(replies, weights, strict=True):
            for name, view in self._mean_views.items():
                view.add_(reply.update[name], alpha=weight / total)
        return bool(self._mean.isfinite().all())

    def _step(self, server_round: int) -> ArrayRecord:
        assert self._torch_optimizer is not None  # set by configure_train
        for group in self._torch_optimizer.param_groups:
            group["lr"] = self.optimizer.lr_at(server_round)
        self._weights.grad = self.direction(self._mean)
        self._torch_optimizer.step()
        # A copy: others keep what was published (clients, captures), and the optimiser works in place.
        self._published = to_record(self._views(self._weights.detach().clone()))
        return self._published

    def _valid(self, server_round: int, replies: Iterable[Message]) -> tuple[list[Reply], int]:
        valid: dict[int, Reply] = {}
        rejected = 0
        for message in replies:
            node = message.metadata.src_node_id
            try:
                reply = self._read(message)
                if reply.client in valid:
                    raise Rejected("it is the client's second reply")
                valid[reply.client] = reply
            except (Rejected, WireError) as reason:
                rejected += 1
                self._warn(server_round, self.roster.client_of.get(node, f"on node {node}"), str(reason))
        return [valid[client] for client in sorted(valid)], rejected

    def _warn(self, server_round: int, client: object, reason: str) -> None:
        self.last_reasons[str(client)] = reason
        log.warning("round %d: the reply of client %s is rejected: %s", server_round, client, reason)

    def _read(self, message: Message) -> Reply:
        node = message.metadata.src_node_id
        if node not in self._asked or node not in self.roster.client_of:
            raise Rejected("it was not asked in this round")
        update, number = read_update(message, self._like, self.rule.num_examples)
        return Reply(self.roster.client_of[node], update, number)
