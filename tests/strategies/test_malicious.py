"""Malicious servers: what they send, what they keep, what their read-outs find, and that a run says so."""

import io
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from flwr.app import ConfigRecord
from flwr.serverapp.strategy import FedAvg
from rich.console import Console

import adversary
from adversary import AttackError
from adversary.exact.fishing import _singles
from fl_app import client_app
from fl_app.attacking.session import task_spec
from fl_app.cli.attack import attack_run
from fl_app.core.local import LocalRule, local_update
from fl_app.core.observation import Knowledge
from fl_app.core.wire import to_record, to_tensors
from fl_app.engines.inline import InlineGrid
from fl_app.engines.serving import build_strategy, malicious
from fl_app.experiment.assets import assets_of
from fl_app.experiment.runs import new_path
from fl_app.experiment.toml import ConfigError
from fl_app.models import parameters_of
from helpers.engines import captures_of, go, same, weights_of
from helpers.malicious import recovered, shares
from helpers.replies import RULE, good, make, tensors
from strategies.crafts import CRAFTS, Craft, CraftError, Scene
from strategies.malicious import Malicious
from strategies.wrapping import Wrapping


@pytest.fixture
def attacked(small):
    return small.changed(capture="1", rounds=1, eval_every=1)


def local_steps(experiment):
    return experiment.changed(update="delta", local_steps=3, local_lr=0.01, batch_size=2, optimizer="sgd(lr=1.0)")


@pytest.mark.parametrize("visibility", ["individual", "aggregate"])
def test_imprint_reads_images_off_one_gradient(attacked, visibility):
    experiment = attacked.changed(server="imprint(bins=200)", visibility=visibility)
    assert min(shares(experiment, go(experiment))) >= 0.75


def test_sparse_imprint_and_loki_read_images_off_local_steps(attacked):
    for server, visibility in (("imprint(bins=200, sparse=True)", "individual"), ("loki(bins=200)", "aggregate")):
        experiment = local_steps(attacked).changed(
            server=server, visibility=visibility, run_dir=f"{attacked.run_dir}-{server[0]}"
        )
        assert min(shares(experiment, go(experiment))) >= 0.75
    with pytest.raises(ConfigError, match="blur"):
        local_steps(attacked).changed(server="imprint")


def test_an_image_is_read_exactly_if_it_is_alone_and_not_at_all_if_its_bin_is_shared(attacked):
    """Two bins in each of two views, for twelve images: two can be alone, four found, and the loss says how many were not."""
    experiment = attacked.changed(server="imprint(bins=4)", batch_size=12)
    for seen in captures_of(go(experiment)):
        guess = adversary.build("imprint")([seen], task_spec(experiment).build(), 0)
        assert recovered(experiment, seen) <= 2 / 12
        assert guess.loss.item() >= 8 / 12 - 1e-6


def test_loki_sends_each_client_kernels_of_its_own_and_the_capture_holds_them(attacked):
    experiment = attacked.changed(server="loki(bins=20)")
    for visibility in ("individual", "aggregate"):
        seen = captures_of(go(experiment.changed(visibility=visibility, run_dir=f"{attacked.run_dir}-{visibility}")))
        sent = [one.params for one in seen] if visibility == "individual" else [seen[0].params, *seen[0].sent.values()]
        for client, params in enumerate(sent):
            used = params["front.conv.weight"].flatten(1).any(1).nonzero()[:, 0] // 3
            assert used.unique().tolist() == [client]
    assert list(seen[0].sent) == [1, 2]
    assert all(own.keys() == {"front.conv.weight"} for own in seen[0].sent.values())
    with pytest.raises(AttackError, match="different weights"):
        adversary.build("inverting_gradients(iterations=1)")(seen, task_spec(experiment).build(), 0)


def test_the_server_trains_on_with_honest_weights_of_its_own(small):
    """What was crafted is as before after the round; the rest moves nearly as that of an honest server."""
    plain = weights_of(go(small.changed(rounds=2, eval_every=2)))
    experiment = small.changed(rounds=2, eval_every=2, capture="all", server="imprint(bins=50)", run_dir=small.run_dir + "-m")
    run = go(experiment)
    kept, before = weights_of(run), parameters_of(assets_of(experiment).model)
    assert not any(value.any() for name, value in kept.items() if name.startswith("front."))
    for name, value in plain.items():
        moved, honest = kept[name] - before[name], value - before[name]
        assert torch.nn.functional.cosine_similarity(moved.flatten(), honest.flatten(), 0) > 0.99
    assert all(one.params["front.out.weight"].any() for one in captures_of(run))


def test_traps_give_images_away_and_leave_the_weights_as_they_were(attacked):
    """Answers to trap weights train nothing, so the server keeps none of them; the round is counted all the same."""
    experiment = attacked.changed(server="traps", model="mlp(hidden=[400, 20])", rounds=2, eval_every=2, capture="all")
    run = go(experiment)
    assert same(weights_of(run), parameters_of(assets_of(experiment).model))
    assert [line.get("accepted") for line in run.metrics()] == [None, 3, 3]
    assert sum(shares(experiment, run)) / 6 >= 0.5
    with pytest.raises(CraftError, match="begins with a fully connected layer"):
        go(attacked.changed(server="traps", run_dir=attacked.run_dir + "-conv"))
    assert not Path(attacked.run_dir + "-conv").exists()


def test_traps_are_seldom_triggered(attacked):
    """Each neuron passes on about one public example in a batch, whatever normalisation lies before it."""
    for normalize in (False, True):
        experiment = attacked.changed(server="traps", model="mlp(hidden=[300, 20])", normalize=normalize)
        assets = assets_of(experiment)
        public = assets.splits.test.at(torch.arange(30))[0]
        honest = parameters_of(assets.model)
        changed = experiment.craft.weights(honest, 1, Scene(assets.model, public, experiment.rule, 0))
        entered = public if not normalize else assets.model.normalize(public)
        weight, bias = changed.values()
        active = (entered.flatten(1) @ weight.T + bias > 0).float().mean().item()
        assert active == pytest.approx(1 / experiment.batch_size, abs=0.02)


def test_fishing_gives_the_gradient_of_one_example_exactly(attacked):
    """What two rounds differ by is the gradient of the one example between their cuts, as if it had been sent by itself."""
    experiment = attacked.changed(
        server="fishing(step=0.1)", capture="all", rounds=9, eval_every=9, client_examples=12, batch_size=12
    )
    run, assets = go(experiment), assets_of(experiment)
    assert same(weights_of(run), parameters_of(assets.model))
    task, found = task_spec(experiment).build(), 0
    for client in range(experiment.clients):
        seen = [replace(one, knowledge=Knowledge(repeats=True)) for one in captures_of(run) if one.client == client]
        x, _ = assets.batch(client, 1)
        for one in _singles(seen, task):
            true = [local_update(assets.model, one.params, image[None], torch.tensor([0]), one.rule) for image in x]
            off = [max(float((mine[key] - value).norm() / value.norm()) for key, value in one.update.items()) for mine in true]
            assert min(off) < 1e-3
            found += 1
    assert found >= 3
    with pytest.raises(AttackError, match="--grant repeats"):
        adversary.build("fishing")(captures_of(run)[:3], task, 0)


def test_fishing_for_a_class_finds_the_one_example_of_it(attacked):
    """One round is enough where a batch has one example of the class; with none or several there is nothing to find."""
    experiment = attacked.changed(server="fishing(kind=class, label=1)", clients=8)
    assets, task = assets_of(experiment), task_spec(experiment).build()
    for seen in captures_of(go(experiment)):
        x, y = assets.batch(seen.client, 1)
        singles = _singles([seen], task)
        assert len(singles) == (1 if (y == 1).sum() == 1 else 0)
        for one in singles:
            true = local_update(assets.model, one.params, x[y == 1], torch.tensor([1]), one.rule)
            for name, value in one.update.items():
                torch.testing.assert_close(value, true[name], rtol=1e-3, atol=1e-5)
    with pytest.raises(ConfigError, match="needs the gradient of one batch"):
        local_steps(attacked).changed(server="fishing")


def test_rounds_that_are_not_captured_are_honest(small):
    experiment = small.changed(server="loki(bins=10)", capture="2")
    assets, strategy = assets_of(experiment), malicious(build_strategy(experiment), assets_of(experiment))
    grid = InlineGrid(client_app.app, experiment.clients, experiment.run_config())
    for server_round, crafted in ((1, False), (2, True)):
        weights = to_record(parameters_of(assets.model))
        messages = strategy.configure_train(server_round, weights, ConfigRecord(), grid)
        for message in messages:
            assert same(to_tensors(message.content["arrays"]), to_tensors(weights)) is not crafted


@dataclass(frozen=True, kw_only=True)
class Marked(Craft):
    """Sends sevens for "a", and if asked to a client's number for "b"."""

    each: bool = False

    def weights(self, honest, server_round, scene):
        return {"a": torch.full_like(honest["a"], 7.0)}

    def own(self, honest, client, scene):
        assert (honest["a"] == 7).all(), "it is given what all clients are sent"
        return {"b": torch.full_like(honest["b"], float(client))} if self.each else {}


@dataclass(frozen=True, kw_only=True)
class Useless(Marked):
    trains: ClassVar[bool] = False


def asked(strategy, grid, server_round):
    """(the messages of a round, what they carry by client)."""
    messages = strategy.configure_train(server_round, to_record(tensors(1)), ConfigRecord(), grid)
    return messages, {one.metadata.dst_node_id - 1: to_tensors(one.content["arrays"]) for one in messages}


@pytest.mark.parametrize("each", [False, True])
def test_crafted_tensors_are_sent_and_taken_back(each):
    inner, grid = make(lambda client, _: good(client + 1))
    strategy = Malicious(Wrapping(inner), Marked(each=each), Scene(None, None, RULE, 0), {2})
    _, sent = asked(strategy, grid, 1)
    assert all(same(one, tensors(1)) for one in sent.values())
    messages, sent = asked(strategy, grid, 2)
    for client, one in sent.items():
        assert (one["a"] == 7).all()
        assert (one["b"] == (client if each else 1)).all()
    assert all(one.content["config"]["server-round"] == 2 for one in messages)
    arrays, _ = strategy.aggregate_train(2, grid.send_and_receive(messages))
    kept = to_tensors(arrays)
    assert (kept["a"] == 1).all(), "as before the round"
    assert (kept["b"] == (1 if each else 1 - 2)).all(), "the others step along the mean gradient, which is 2"
    messages, _ = asked(strategy, grid, 3)
    arrays, _ = strategy.aggregate_train(3, grid.send_and_receive(messages))
    assert (to_tensors(arrays)["a"] == -1).all(), "an honest round trains all of them"


def test_answers_that_train_nothing_are_counted_and_thrown_away():
    inner, grid = make(lambda client, _: good(client + 1))
    strategy = Malicious(Wrapping(inner), Useless(), Scene(None, None, RULE, 0), {1})
    messages, _ = asked(strategy, grid, 1)
    arrays, metrics = strategy.aggregate_train(1, grid.send_and_receive(messages))
    assert arrays is None
    assert metrics["accepted"] == 3
    messages, _ = asked(strategy, grid, 2)
    assert strategy.aggregate_train(2, grid.send_and_receive(messages))[0] is not None


def test_around_a_strategy_without_numbers_clients_are_numbered_as_they_are_asked():
    inner, grid = make(lambda client, _: good(1))
    messages = inner.configure_train(1, to_record(tensors(1)), ConfigRecord(), grid)

    class Foreign(FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            return [messages[place] for place in ((2, 0) if server_round == 1 else (1, 0))]

        def aggregate_train(self, server_round, replies):
            return None, None

    strategy = Malicious(Foreign(), Marked(each=True), Scene(None, None, RULE, 0), {1, 2})
    assert {node: one["b"][0].item() for node, one in asked(strategy, grid, 1)[1].items()} == {2: 0, 0: 1}
    assert {node: one["b"][0].item() for node, one in asked(strategy, grid, 2)[1].items()} == {1: 2, 0: 1}
    assert strategy.aggregate_train(1, []) == (None, None)
    assert Malicious(Foreign(), Useless(), Scene(None, None, RULE, 0), {1}).aggregate_train(1, []) == (None, None)


def test_a_craft_that_does_not_fit_is_refused_before_the_first_round():
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 1, 1))
    with pytest.raises(CraftError, match="several local steps"):
        Malicious(FedAvg(), CRAFTS["traps"](), Scene(model, None, LocalRule(kind="delta", steps=2, lr=0.1), 0), {1})
    with pytest.raises(CraftError, match="begins with a fully connected layer"):
        Malicious(FedAvg(), CRAFTS["traps"](), Scene(model, None, RULE, 0), {1})


def test_loki_through_secure_aggregation(attacked):
    """The protocol gives the server the mean alone, and that is enough."""
    experiment = local_steps(attacked).changed(server="loki(bins=200)", visibility="secagg")
    assert min(shares(experiment, go(experiment))) >= 0.75


def test_a_malicious_run_says_so_everywhere(attacked):
    experiment = attacked.changed(server="imprint(bins=50)")
    run = go(experiment)
    said = "The server is malicious: imprint(bins=50). In the captured rounds it chose the weights and the architecture."
    assert said in (run.path / "MALICIOUS.txt").read_text()
    assert 'server = "imprint(bins=50)"' in run.settings_path.read_text()
    assert all(line["server"] == "imprint(bins=50)" for line in run.metrics())
    assert "malicious_imprint" in new_path(experiment, run.path).name
    text = io.StringIO()
    attack_run(Console(file=text, width=200), run.path, [], grants=["labels"], perceptual=False)
    assert said in text.getvalue()
    (scores,) = (run.path / "attacks").glob("imprint*/scores.jsonl")
    for line in map(json.loads, scores.read_text().splitlines()):
        for word in ("labels", "the server chose the weights", "the server chose the architecture", "public examples"):
            assert word in line["ledger"]


def test_an_honest_server_changes_nothing(attacked):
    assert not attacked.warning
    assert not attacked.craft.chooses
    strategy = build_strategy(attacked)
    assert malicious(strategy, assets_of(attacked)) is strategy
    assert not attacked.craft.readout


def test_servers_are_named_and_each_has_a_read_out():
    assert list(CRAFTS) == ["honest", "fishing", "imprint", "loki", "traps"]
    for craft in CRAFTS.values():
        adversary.build(craft().readout or adversary.DEFAULT)


def test_an_unknown_server_is_answered_with_the_valid_ones(small):
    with pytest.raises(ConfigError, match=r"unknown server 'lokki'; did you mean 'loki'\?"):
        small.changed(server="lokki")
    with pytest.raises(ConfigError, match="bins"):
        small.changed(server="loki(bins=0)")
