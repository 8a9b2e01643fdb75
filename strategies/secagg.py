"""Secure aggregation: Flower's SecAgg+ around any strategy, so that the server learns the mean of a round and no reply.

Flower 1.39 has the protocol for its older API alone: a workflow that asks a legacy strategy, and a mod that reads legacy
replies. Both are used here as they are, with records translated on either side of them.
"""

import logging
from types import SimpleNamespace
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.clientapp.typing import ClientAppCallable
from flwr.common import FitIns, FitRes, Parameters, parameters_to_ndarrays
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS
from flwr.compat.common.recorddict_compat import fitres_to_recorddict
from flwr.compat.common.typing import Code, Status
from flwr.server import LegacyContext
from flwr.server.strategy import FedAvg as LegacyFedAvg
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD, Key
from flwr.server.workflow.secure_aggregation.secaggplus_workflow import WorkflowState
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fl_app.core.refusal import refusal
from strategies.hidden import CannotHide, Hidden, like, shown, update_of

log = logging.getLogger("thorns")


def secagg_mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Flower's `secaggplus_mod` for a ClientApp that replies with one ArrayRecord and its number of examples.

    It must come first in the list of mods: what stands behind it sees plain updates.
    """
    if message.metadata.message_type.partition(".")[0] != "train":
        return call_next(message, context)
    configs = message.content.get(RECORD_KEY_CONFIGS)
    if not isinstance(configs, ConfigRecord):
        why = "the server asks for a plain update, but this client sends masked ones only: wrap its strategy in SecAgg"
        return refusal(message, f"secagg_mod: {why}")

    def plain(request: Message, context: Context) -> Message:
        return _legacy(request, call_next(request, context))

    # The mod takes things out of this record, which within one process may be that of all clients.
    message.content = RecordDict({**message.content, RECORD_KEY_CONFIGS: ConfigRecord(dict(configs))})
    try:
        return secaggplus_mod(message, context, plain)
    except CannotHide as error:
        return refusal(message, f"secagg_mod: {error}")


def _legacy(request: Message, reply: Message) -> Message:
    """The reply as Flower's mod reads it: arrays without names, in the order of the request."""
    arrays, number = update_of(request, reply)
    result = FitRes(Status(Code.OK, ""), Parameters([array.data for array in arrays.values()], "numpy.ndarray"), number, {})
    return Message(fitres_to_recorddict(result, keep_input=True), reply_to=request)


class _Asked(LegacyFedAvg):
    """What the workflow takes for its strategy: it names the nodes, and keeps what the workflow found out."""

    def __init__(self, nodes: list[int]) -> None:
        super().__init__()
        self.nodes = nodes
        self.mean: Parameters | None = None
        self.counts: dict[int, int] = {}

    def configure_fit(self, server_round: int, parameters: Parameters, client_manager: Any) -> Any:
        return [(SimpleNamespace(node_id=node), FitIns(Parameters([], ""), {})) for node in self.nodes]

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
        self.mean = results[0][1].parameters  # the workflow puts the same mean into all of them
        self.counts = {proxy.node_id: result.num_examples for proxy, result in results}
        return None, {}


class SecAgg(Hidden):
    """SecAgg+ around a strategy; clients need `secagg_mod`.

    `max_examples` is the most that a client may count, `clip` bounds each entry times its client's share of that. The mean
    comes back with an error of about 2 clip / 2^22 per entry. `threshold` is the share of the clients that must stay.
    """

    def __init__(
        self,
        strategy: Strategy,
        *,
        max_examples: int,
        clip: float = 8.0,
        threshold: float = 0.5,
        timeout: float = 3600.0,
    ) -> None:
        super().__init__(strategy)
        self.workflow = SecAggPlusWorkflow(1.0, threshold, max_weight=float(max_examples), clipping_range=clip, timeout=timeout)

    def exchange(self, server_round: int, requests: dict[int, Message], grid: Grid) -> list[Message]:
        """The four stages of Flower's workflow."""
        asked, flow, state = _Asked(list(requests)), self.workflow, WorkflowState()
        records = RecordDict(
            {MAIN_CONFIGS_RECORD: ConfigRecord({Key.CURRENT_ROUND: server_round}), MAIN_PARAMS_RECORD: ArrayRecord()}
        )
        context = LegacyContext(Context(0, SUPERLINK_NODE_ID, {}, records, {}), strategy=asked)
        try:
            done = flow.setup_stage(grid, context, state)
            # In place of the legacy instructions, which have no names: each node gets what the strategy wrote to it.
            state.nid_to_fitins = {node: RecordDict(dict(message.content)) for node, message in requests.items()}
            for stage in (flow.share_keys_stage, flow.collect_masked_vectors_stage, flow.unmask_stage):
                done = done and stage(grid, context, state)
        except Exception as error:  # Flower's workflow takes replies for what they should be: one must not end the run
            log.warning("round %d: a reply is not of the protocol: %s", server_round, type(error).__name__)
            done = False
        reasons = {str(failure) for failure in state.failures}
        if reasons:
            log.warning("round %d: clients dropped out of the secure aggregation: %s", server_round, "; ".join(sorted(reasons)))
        if not done or asked.mean is None:
            log.warning("round %d: too few clients stayed for a secure aggregation, so nothing is known of them", server_round)
            return []
        values = parameters_to_ndarrays(asked.mean)
        mean = {name: torch.from_numpy(value) for name, value in zip(like(requests), values, strict=True)}
        return shown(requests, asked.counts, mean)
