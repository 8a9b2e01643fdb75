"""Every registered attack keeps every contract, and each contract has an attack that breaks it."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import adversary
from adversary import Attack, AttackError, Belief, Guess, contracts
from adversary.labels import infer
from fl_app.core.local import LocalRule, local_update

FEW = {
    "attribute": "attribute(column=kind)",
    "ci_net": "ci_net(iterations=100, lr=0.02, channels=4)",
    "ci_net_lbfgs": "ci_net_lbfgs(iterations=50, channels=4, seeds=2, refined=20)",
    "coarse_to_fine": "coarse_to_fine(coarsest=2, finest=1, iterations=60)",
    "cosine_lbfgs": "cosine_lbfgs(iterations=100)",
    "dlg": "dlg(iterations=100, restarts=1)",
    "epochwise": "epochwise(iterations=100)",
    "fgla": "fgla(hidden=32, epochs=1, flips=False)",
    "fishing": "fishing(attack=idlg(iterations=100, labels=given, restarts=1))",
    "gauss_newton": "gauss_newton(iterations=3, products=10)",
    "ggl": "ggl(iterations=60, seeds=2)",
    "gias": "gias(iterations=40, second=40, seeds=1)",
    "gifd": "gifd(iterations=40, stages=1, seeds=1)",
    "grad_inversion": "grad_inversion(iterations=150, seeds=2)",
    "idlg": "idlg(iterations=100, restarts=1)",
    "inverting_gradients": "inverting_gradients(iterations=200)",
    "lamp_cos": "lamp_cos(iterations=60, lr=0.05, draws=10, orders=10)",
    "lamp_l1l2": "lamp_l1l2(iterations=60, lr=0.05, norm=1.0, language=0.1, draws=10, orders=10)",
    "lti": "lti(sketch=512, hidden=32, epochs=1, flips=False)",
    "matching": "matching(optimizer=adam(iterations=200))",
    "mjolnir": "mjolnir(noise=0.001, training=40, width=4, iterations=60)",
    "peeling": "peeling(iterations=50)",
    "property": "property(column=kind, value=a, batches=40)",
    "rows": "rows(iterations=200)",
    "sme": "sme(iterations=100)",
    "tag": "tag(iterations=60)",
}
"""With fewer iterations than papers take."""
FROZEN = dataclass(frozen=True, kw_only=True)


@pytest.mark.parametrize("contract", contracts.CONTRACTS)
@pytest.mark.parametrize("name", sorted(adversary.ATTACKS))
def test_every_attack_keeps_every_contract(name, contract):
    contracts.CONTRACTS[contract](adversary.build(FEW.get(name, name)))


@FROZEN
class Broken(Attack):
    """Answers with what it makes of an observation, and a stream of its own."""

    def one(self, seen, task, stream):
        return task.space.noise(1, stream)

    def run(self, seen, task, streams):
        x = torch.stack([self.one(one, task, stream) for one, stream in zip(seen, streams, strict=True)])
        return Guess(x, torch.zeros(len(seen), 1, dtype=torch.int64), torch.zeros(len(seen)))


@FROZEN
class GlobalDraws(Broken):
    def one(self, seen, task, stream):
        return torch.rand(1, *task.space.shape)


@FROZEN
class NotFinite(Broken):
    def one(self, seen, task, stream):
        return torch.full((1, *task.space.shape), torch.nan)


@FROZEN
class FloatLabels(Broken):
    def run(self, seen, task, streams):
        guess = super().run(seen, task, streams)
        return guess._replace(y=guess.y.float())


@FROZEN
class Divides(Broken):
    def one(self, seen, task, stream):
        size = torch.stack([value.abs().max() for value in seen.update.values()]).max()
        return super().one(seen, task, stream) * size / size


@FROZEN
class SharedStream(Broken):
    def run(self, seen, task, streams):
        return super().run(seen, task, [streams[0]] * len(streams))


@FROZEN
class EatsTheUpdate(Broken):
    def one(self, seen, task, stream):
        next(iter(seen.update.values())).zero_()
        return super().one(seen, task, stream)


@FROZEN
class TrainsTheModel(Broken):
    def one(self, seen, task, stream):
        with torch.no_grad():
            next(task.model.parameters()).add_(1)
        return super().one(seen, task, stream)


@FROZEN
class EatsTheWeights(Broken):
    def one(self, seen, task, stream):
        next(iter(seen.params.values())).zero_()
        return super().one(seen, task, stream)


@FROZEN
class TracksTheWeights(Broken):
    def one(self, seen, task, stream):
        next(iter(seen.params.values())).requires_grad_()
        return super().one(seen, task, stream)


@FROZEN
class Grey(Broken):
    def one(self, seen, task, stream):
        return torch.full((1, *task.space.shape), 0.5)


@FROZEN
class Mean(Broken):
    """Answers with what anybody knows of public examples."""

    trained = True

    def learn(self, task, seen, public, rng):
        return {"mean": public.x.mean(0, keepdim=True)}

    def one(self, seen, task, stream):
        return self.learned["mean"]


@FROZEN
class KnowsTheMemory(Broken):
    """Draws by where the weights lie."""

    def one(self, seen, task, stream):
        place = next(iter(seen.params.values())).data_ptr()
        return task.space.noise(1, torch.Generator().manual_seed(place))


@FROZEN
class KnowsTheUpdates(Broken):
    """Draws by where the update lies."""

    def one(self, seen, task, stream):
        return task.space.noise(1, torch.Generator().manual_seed(next(iter(seen.update.values())).data_ptr()))


TRUTH: list[Tensor] = []


@FROZEN
class Peeks(Broken):
    """Finds the true examples in memory."""

    def one(self, seen, task, stream):
        return TRUTH[0][seen.client]


@pytest.mark.parametrize(
    ("broken", "contract", "said"),
    [
        (GlobalDraws, "answers", "global generator: use the streams"),
        (GlobalDraws, "seeded", "take every draw from the streams"),
        (NotFinite, "answers", "not finite"),
        (FloatLabels, "answers", "the labels have the type torch.float32"),
        (Divides, "nothing_sent", "of an update of zeros, x holds values that are not finite"),
        (SharedStream, "alone", "draw from its own stream alone"),
        (KnowsTheMemory, "only_what_is_seen", "the same observation gives another answer"),
        (KnowsTheUpdates, "only_what_is_seen", "the same observation gives another answer"),
        (EatsTheUpdate, "inputs_stay", "changes the update in place"),
        (TrainsTheModel, "inputs_stay", "changes the model in place"),
        (EatsTheWeights, "inputs_stay", "changes the weights in place"),
        (TracksTheWeights, "inputs_stay", "updates or weights that require a gradient"),
        (Broken, "beats_blind", "that of noise .*: it rebuilds nothing"),
        (Grey, "beats_blind", "that of a grey image .*: it rebuilds nothing"),
        (Mean, "beats_blind", "that of the mean image .*: it rebuilds nothing"),
    ],
)
def test_a_broken_contract_is_said_in_a_sentence(broken, contract, said):
    with pytest.raises(AssertionError, match=said):
        contracts.CONTRACTS[contract](broken())


def test_what_attacks_are_tried_on():
    """Updates of one example each, of different classes, and public examples that look like them."""
    for network in contracts.NETWORKS[:3]:
        before = torch.random.get_rng_state()
        case = contracts.case_of(network)
        assert torch.equal(before, torch.random.get_rng_state())
        classes = [infer("sign", one, case.task, torch.Generator()).item() for one in case.seen]
        assert classes == [0, 1, 2]
        assert [(one.client, one.num_examples, one.server_round) for one in case.seen] == [(0, 1, 1), (1, 1, 1), (2, 1, 1)]
        for one, x, label in zip(case.seen, case.x, classes, strict=True):
            exact = local_update(case.task.model, one.params, x, torch.tensor([label]), LocalRule(batch_size=1))
            assert all(torch.equal(value, exact[name]) for name, value in one.update.items())
    assert case.x.shape == (3, 1, 1, 8, 8)
    assert torch.bincount(case.public.y).tolist() == [125] * 4
    assert 0 <= case.public.x.min() < 0.1 < 0.9 < case.public.x.max() <= 1
    means = torch.stack([case.public.x[case.public.y == label].mean(0) for label in range(4)])
    distances = torch.cdist(case.x.flatten(1), means.flatten(1))
    assert distances.argmin(1).tolist() == [0, 1, 2]  # more like their own class
    corners = case.public.x[:, 0, [0, 0, -1, -1], [0, -1, 0, -1]]
    assert corners.std(0).min() > 0.1  # drawn anew for each


def test_the_first_network_that_an_attack_takes_is_its_case():
    shapes = {"idlg": (12, 1, 5, 5), "peeling": (12, 1, 3, 3)}
    for name, shape in shapes.items():
        ready, case = contracts.case_for(adversary.build(FEW[name]))
        assert next(iter(case.seen[0].params.values())).shape == shape
        assert ready.cost(1, LocalRule(batch_size=1)) <= adversary.build(FEW[name]).cost(1, LocalRule(batch_size=1))
    assert contracts.case_for(adversary.build(FEW["idlg"]), quick=False)[0] == adversary.build(FEW["idlg"])
    assert contracts.case_for(adversary.build(FEW["idlg"]))[0].optimizer.iterations == 4
    assert contracts.case_for(Exact())[1].seen[0].update["1.weight"].shape == (32, 64)
    assert contracts.case_for(Mean())[0].learned.keys() == {"mean"}


def test_an_attack_that_finds_the_truth_elsewhere_is_noticed(monkeypatch):
    real = contracts.case_of

    def watched(model):
        case = real(model)
        TRUTH[:] = [case.x]
        return case

    monkeypatch.setattr(contracts, "case_of", watched)
    with pytest.raises(AssertionError, match="the same observation gives another answer"):
        contracts.only_what_is_seen(Peeks())


@FROZEN
class Exact(Attack):
    """Reads the input of a linear layer off its gradient."""

    def run(self, seen, task, streams):
        name, weight = next(iter(seen[0].update.items()))
        if weight.ndim != 2:
            raise AttackError("the first layer must be linear")
        rows = [one.update[name.replace("weight", "bias")].abs().argmax() for one in seen]
        x = [
            one.update[name][row] / one.update[name.replace("weight", "bias")][row] for one, row in zip(seen, rows, strict=True)
        ]
        if not torch.stack(x).isfinite().all():
            raise AttackError("no neuron was reached")
        shape = (len(seen), 1, *task.space.shape)
        return Guess(torch.stack(x).view(shape), torch.zeros(len(seen), 1, dtype=torch.int64), torch.zeros(len(seen)))


@FROZEN
class Learned(Attack):
    """Believes in the public example whose gradient of the last bias lies nearest."""

    trained = True

    def learn(self, task, seen, public, rng):
        return {"mean": public.x.mean(0)}

    def run(self, seen, task, streams):
        return Belief(torch.stack([list(one.update.values())[-1] for one in seen]) + self.learned["mean"].sum())


@pytest.mark.parametrize("other", [Exact, Learned])
def test_exact_learned_and_inference_attacks_keep_them_too(other):
    for contract in contracts.CONTRACTS.values():
        contract(other())


def test_an_attack_that_takes_nothing_says_so():
    @FROZEN
    class Picky(Attack):
        def run(self, seen, task, streams):
            raise AttackError("only on Sundays")

    with pytest.raises(AttackError, match=r"it attacks none of .*: only on Sundays"):
        contracts.answers(Picky())
