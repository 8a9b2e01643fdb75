"""Who knows the noise of latent perturbation: matching at its mean."""

import pytest
import torch
from torch.func import functional_call, vmap

import adversary
from adversary import AttackError
from adversary.informed.latent_perturbation import MeanLatent, ReadFeatures, with_mean_noise
from client_defenses import Memory, build
from client_defenses.latent_perturbation import LatentPerturbation
from client_defenses.tools.cut import passed
from fl_app import models
from fl_app.core.local import LocalRule
from fl_app.core.observation import Knowledge, Observation, Task
from fl_app.core.space import Images
from helpers.latent import SHAPE, step_of


def informed_model(step, defense):
    """The model of an attacker who was told the defense."""
    seen = Observation(
        params=step.params,
        update=step.params,
        rule=LocalRule(),
        num_examples=1,
        server_round=1,
        knowledge=Knowledge(defense=defense),
    )
    return MeanLatent().model(step.model, seen, Task(step.model, Images(SHAPE), 5))


@pytest.fixture
def step(rng):
    return step_of("lenet", rng)


def test_who_knows_the_noise_matches_at_its_mean(step):
    sent = LatentPerturbation(alpha=0.0, mu=0.7, sigma=0.0).protect(step, Memory.fresh(0))
    informed = informed_model(step, "prune(ratio=0.1) + latent_perturbation(mu=0.7)")
    assert models.parameters_of(informed).keys() == step.params.keys()
    assert hasattr(informed, "normalize")
    found = step._replace(model=informed).differentiable_gradient()
    naive = step.differentiable_gradient()
    for name, value in sent.items():
        torch.testing.assert_close(found[name], value, atol=1e-6, rtol=1e-4)
    assert (naive["net.fc.weight"] - sent["net.fc.weight"]).norm() > 0.1 * sent["net.fc.weight"].norm()
    assert not any(module._forward_hooks for module in step.model.modules())
    mu = torch.arange(108.0).view(12, 3, 3) / 100
    moved = with_mean_noise(step.model, "act3", mu, SHAPE)
    logits, _ = passed(step.model, step.params, step.x, "net.act3", lambda z: z + mu)
    many = vmap(lambda x: functional_call(moved, step.params, (x,)))(step.x[None].expand(2, -1, -1, -1, -1))
    torch.testing.assert_close(many, logits.expand(2, -1, -1))
    assert informed_model(step, "prune + none") is step.model


def test_the_mean_of_the_noise_hides_nothing_from_who_knows_it(rng):
    step, defense = step_of("lenet", rng), "latent_perturbation(mu=1.0, sigma=0.02)"
    seen = [
        Observation(
            params=step.params,
            update=build(defense).protect(step._replace(x=step.x[i : i + 1], y=step.y[i : i + 1]), Memory.fresh(i)),
            rule=LocalRule(batch_size=1),
            num_examples=1,
            server_round=1,
            client=i,
            knowledge=Knowledge(labels=step.y[i : i + 1], defense=defense),
        )
        for i in range(3)
    ]
    task, naive = Task(step.model, Images(SHAPE), 5), adversary.build("cosine_lbfgs(labels='given', tv=0.0, iterations=150)")
    told = {one.name: one.attack for one in naive.informed(defense, adversary.Facts())}
    errors = []
    for attack in (naive, told["mean"]):
        guess = attack(seen, task, 0)
        errors.append((guess.x[:, 0] - step.x[:3]).square().mean().item())
    assert errors[1] < 0.5 * errors[0]


def test_the_latent_is_read_with_the_noise_in_it(step):
    """At the true image all layers but the last have the gradient that was sent, whatever noise was drawn."""
    one = step._replace(x=step.x[:1], y=step.y[:1])
    sent = LatentPerturbation(alpha=0.0, mu=0.0, sigma=0.5).protect(one, Memory.fresh(0))
    seen = Observation(params=step.params, update=sent, rule=LocalRule(batch_size=1), num_examples=1, server_round=1)
    task, observer = Task(step.model, Images(SHAPE), 5), ReadFeatures()
    params = observer.weights(step.params, observer.draw(seen, task), 0.0)
    found = one._replace(model=observer.model(step.model, seen, task), params=params).differentiable_gradient()
    for name, value in sent.items():
        torch.testing.assert_close(found[name], value, atol=1e-5, rtol=1e-3)
    two = Observation(params=step.params, update=sent, rule=LocalRule(batch_size=2), num_examples=2, server_round=1)
    with pytest.raises(AttackError, match="of one example"):
        observer.draw(two, task)
