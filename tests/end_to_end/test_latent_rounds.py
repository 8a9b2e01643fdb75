"""Latent perturbation in a run: what never leaves a client, and what it learns once."""

import pytest
from flwr.app import RecordDict

from client_defenses.latent_perturbation import LatentPerturbation
from fl_app import engines, models
from fl_app.client_app import MEMORY, app, memory_of
from fl_app.core.wire import to_record, to_tensors
from fl_app.engines.inline import InlineGrid
from fl_app.engines.serving import build_strategy
from fl_app.engines.watcher import Watcher
from fl_app.experiment.assets import assets_of
from fl_app.store.captures import Captures
from helpers.engines import StopAt, same

TINY = {
    "defense": "latent_perturbation(noise='learned', pretrain_epochs=1, pretrain_batch=8)",
    "update": "delta",
    "local_steps": 5,
    "local_examples": 4,
    "local_lr": 0.01,
    "local_optimizer": "adam",
    "optimizer": "sgd(lr=1.0)",
}


@pytest.mark.parametrize("update", ["delta", "gradient"])
def test_decoder_and_noise_never_leave_the_client(update, small):
    """Every record of every reply, name by name and byte by byte, and what the server captured of them."""
    plain = {"update": "gradient", "local_steps": 1, "local_examples": 0, "local_optimizer": "sgd"}
    experiment = small.changed(**{**TINY, **(plain if update == "gradient" else {})}, rounds=2, capture="all")
    grid = InlineGrid(app, experiment.clients, experiment.run_config())
    strategy, params = build_strategy(experiment), parameters_of(experiment)
    for server_round in (1, 2):
        replies = list(grid.send_and_receive(strategy.configure_train(server_round, to_record(params), RecordDict(), grid)))
        assert len(replies) == experiment.clients
        for reply in replies:
            assert set(reply.content) == {"arrays", "metrics"}
            assert dict(reply.content["metrics"]) == {"num-examples": experiment.batch_size}
            sent = to_tensors(reply.content["arrays"])
            assert {name: value.shape for name, value in sent.items()} == {k: v.shape for k, v in params.items()}
            private = memory_of(grid.contexts[reply.metadata.src_node_id])
            assert {name.partition("/")[0] for name in private} == {"decoder", "noise"}
            message = b"".join(array.data for array in reply.content["arrays"].values())
            weights = sum(value.numel() * value.element_size() for value in params.values())
            assert len(message) < weights + 200 * len(params)  # the numbers of the model and a header each
            for value in private.values():
                if value.numel() > 3 and value.unique().numel() > 3:
                    assert value.numpy().tobytes() not in message
    run = engines.run(experiment, "inline", Watcher(), workers=1)
    seen, failed = Captures(run.path / "captures").read_all()
    assert len(seen) == 2 * experiment.clients
    assert not failed
    for one in seen:
        assert one.update.keys() == params.keys()
        assert one.params.keys() == params.keys()
    assert run.load_checkpoint().weights.keys() == params.keys()


def parameters_of(experiment):
    return models.parameters_of(assets_of(experiment).model)


def test_a_stopped_run_resumes_to_the_same_weights_and_learns_its_noise_once(small, tmp_path, monkeypatch):
    calls = []
    learn = LatentPerturbation.on_start
    monkeypatch.setattr(
        LatentPerturbation, "on_start", lambda self, step, memory: (calls.append(len(step.x)), learn(self, step, memory))
    )
    experiment = small.changed(**TINY, clients=4, fraction=0.5, rounds=4)
    whole = engines.run(experiment.changed(run_dir=str(tmp_path / "whole")), "inline", Watcher(), workers=1)
    assert calls == [30] * len(calls)  # all that a client owns
    assert 2 <= len(calls) <= 4  # once for each client that was asked
    broken = experiment.changed(run_dir=str(tmp_path / "broken"))
    engines.run(broken, "inline", StopAt(2), workers=1)
    resumed = engines.run(broken, "inline", Watcher(), resume=True, workers=1)
    assert len(calls) % 2 == 0  # as often in both
    assert same(whole.load_checkpoint().weights, resumed.load_checkpoint().weights)
    asked = [client for client in range(4) if resumed.load_memory(4, client)]  # those asked after the stop
    assert asked
    for client in asked:
        assert same(whole.load_memory(4, client), resumed.load_memory(4, client))


def test_other_defenses_are_asked_nothing_at_the_start(small):
    grid = InlineGrid(app, 3, small.run_config())
    message = build_strategy(small).configure_train(1, to_record(parameters_of(small)), RecordDict(), grid)
    list(grid.send_and_receive(message))
    assert all(MEMORY not in context.state for context in grid.contexts.values())
