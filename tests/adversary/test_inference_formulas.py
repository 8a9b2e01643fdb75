"""Attributes, properties and labels against the same computed by hand: every choice tried, every batch's own update."""

from dataclasses import replace

import pytest
import torch

import adversary
import client_defenses
from adversary import AttackError, Public
from adversary.inference import base
from adversary.inference.attribute import explained
from adversary.inference.property import Property, drawn
from adversary.inference.updates import RIDGES, ridge, simulated
from adversary.informed.simulate import through
from client_defenses import Memory
from fl_app.core.local import Step
from fl_app.core.observation import Candidates, Knowledge, Task
from fl_app.core.space import Images
from helpers.rows import ROWS, scene

NET = "mlp(hidden=[5])"


def about_jobs(batch, model=NET):
    """One target whose rows are known up to the job: (rows with each job, their classes, places, seen, task)."""
    x, y, (seen,), task = scene(batch, targets=1, model=model)
    filled = ROWS.filled(x[0], "job")
    known = Candidates(filled.flatten(0, 1), y[0].repeat_interleave(3))
    return filled, y[0], ROWS.cells(x[0])[:, 3].long(), replace(seen, knowledge=Knowledge(candidates=known)), task


def test_of_any_update_scores_are_the_matches_of_one_value_changed(rng):
    """Also of one that no choice explains: each row's best value is chosen, given the others'."""
    for _ in range(5):
        tried, update = torch.randn(12, 30, generator=rng), torch.randn(30, generator=rng)
        found = explained(tried @ update, tried @ tried.T, 4).view(4, 3)
        chosen, rows = found.argmax(1), tried.view(4, 3, 30)
        for row in range(4):
            for value in range(3):
                choice = chosen.clone()
                choice[row] = value
                total = rows[torch.arange(4), choice].sum(0)
                assert found[row, value].item() == pytest.approx(float(total @ update / total.norm()), rel=1e-4, abs=1e-4)


def test_the_search_for_values_begins_with_least_squares(rng):
    """Rows that nearly cancel each other: from the values that match best by themselves the search would not get out."""
    truth, tried = torch.tensor([1, 0, 2, 1, 0, 2]), torch.randn(18, 60, generator=rng)
    tried[6:9] = -tried[3:6] + 0.1 * torch.randn(3, 60, generator=rng)
    update = tried.view(6, 3, 60)[torch.arange(6), truth].mean(0)
    found = explained(tried @ update, tried @ tried.T, 6).view(6, 3) / update.norm()
    assert torch.equal(found.argmax(1), truth)
    assert found.amax(1).tolist() == pytest.approx([1.0] * 6, abs=1e-4)
    assert explained(torch.zeros(6), torch.zeros(6, 6), 2).tolist() == [0.0] * 6


def test_entries_that_a_defense_took_do_not_count_for_an_attribute():
    _, _, places, seen, task = about_jobs(2, "mlp(hidden=[64, 32])")
    taken = {name: value * (torch.arange(value.numel()).view_as(value) % 3 == 0) for name, value in seen.update.items()}
    scores = adversary.build("attribute(column=job)")([replace(seen, update=taken)], task, 0).scores.view(2, 3)
    assert torch.equal(scores.argmax(1), places)
    assert scores.amax(1).tolist() == pytest.approx([1.0, 1.0], abs=1e-4)
    nothing = {name: torch.zeros_like(value) for name, value in seen.update.items()}
    assert adversary.build("attribute(column=job)")([replace(seen, update=nothing)], task, 0).scores.isfinite().all()
    assert adversary.build("attribute(column=job)").question == "attribute:job"


def test_an_attribute_needs_each_value_of_each_row():
    *_, seen, task = about_jobs(2)
    some = Candidates(*(one[:5] for one in seen.knowledge.candidates))
    with pytest.raises(AttackError, match="the attribute of 2 rows"):
        adversary.build("attribute(column=job)")([replace(seen, knowledge=Knowledge(candidates=some))], task, 0)


def test_through_a_defense_each_score_is_that_of_a_batch_with_one_row_changed():
    """Signs keep too little to be linear in the choices; what is scored last is what the others were chosen as."""
    filled, y, places, seen, task = about_jobs(2, "mlp(hidden=[64, 32])")

    def sent(jobs):
        step = Step(seen.params, task.model, filled[torch.arange(2), jobs], y)
        return client_defenses.build("sign").protect(step, Memory.fresh(0))

    (told,) = adversary.build("attribute(column=job)").informed("sign", adversary.Facts())
    scores = told.attack([replace(seen, update=sent(places))], task, 0).scores.view(2, 3)
    assert torch.equal(scores.argmax(1), places)
    for row in range(2):
        for value in range(3):
            jobs = places.clone()
            jobs[row] = value
            match = torch.cosine_similarity(base.flat(sent(jobs)), base.flat(sent(places)), dim=0)
            assert scores[row, value].item() == pytest.approx(match.item(), abs=1e-5)


def test_what_a_drawing_defense_makes_of_a_batch_is_its_mean_over_draws(rng):
    x, y, (seen,), task = scene(2, targets=1, model=NET)
    some, many = (through("gradient_dropout(p=0.5)", task, seen, x, y, rng, draws) for draws in (1, 300))
    plain = base.flat(seen.update)
    assert not torch.equal(some[0], many[0])
    assert torch.cosine_similarity(many[0], plain, dim=0) > torch.cosine_similarity(some[0], plain, dim=0)


@pytest.fixture(scope="module")
def table():
    rng = torch.Generator().manual_seed(8)
    return Public(ROWS.noise(30, rng), torch.randint(2, (30,), generator=rng))


@pytest.mark.parametrize("chunk", [4 * 57, 2**24])
@pytest.mark.parametrize("spec", ["", "sign"])
def test_public_batches_give_the_updates_of_clients_that_have_them(table, monkeypatch, rng, chunk, spec):
    monkeypatch.setattr(base, "CHUNK", chunk)
    _, _, (seen,), task = scene(3, targets=1, model=NET)
    chosen = torch.randint(30, (6, 3), generator=rng)
    found = simulated(task, seen, table, chosen, spec, rng)
    for rows, own in zip(chosen, found, strict=True):
        step = Step(seen.params, task.model, table.x[rows], table.y[rows])
        sent = client_defenses.build(spec or "none").protect(step, Memory.fresh(0))
        torch.testing.assert_close(own, base.flat(sent), rtol=1e-4, atol=1e-6)


def sizes(updates):
    return (updates / updates.norm(dim=1, keepdim=True)).abs()


def test_a_property_is_a_direction_in_the_sizes_of_entries_from_their_middle(table):
    _, _, seen, task = scene(3, targets=2, model=NET)
    attack = Property(column="job", value="b", batches=20)
    found = attack.learn(task, seen[0], table, torch.Generator().manual_seed(1))
    has = table.x[:, ROWS.places["job"]][:, 1] == 1
    rng = torch.Generator().manual_seed(1)
    chosen = drawn(has, 20, 3, rng)
    made = sizes(simulated(task, seen[0], table, chosen, "", rng))
    truth = torch.tensor([1.0] * 10 + [-1.0] * 10)[:, None]
    torch.testing.assert_close(found["middle"], made.mean(0))
    torch.testing.assert_close(found["direction"], ridge(made - made.mean(0), truth), rtol=1e-3, atol=1e-4)
    scores = attack.taught(found)(seen, task, 0).scores
    own = sizes(torch.stack([base.flat(one.update) for one in seen]))
    torch.testing.assert_close(scores, (own - found["middle"]) @ found["direction"].T)
    assert attack.question == "property:job=b"
    (told,) = attack.informed("sign", adversary.Facts())
    assert told.attack == replace(attack, through="sign")
    assert attack.informed("none", adversary.Facts()) == []
    with pytest.raises(AttackError, match="these examples have no attributes"):
        attack.learn(Task(task.model, Images((1, 2, 4)), 2), seen[0], table, rng)


def test_batches_with_a_property_have_more_of_it_at_the_public_share(rng):
    """The first row has it, each other with the share of the public; in batches without it all rows without it are drawn."""
    has = torch.arange(10) < 4
    chosen = drawn(has, 4000, 3, rng)
    first, second = has[chosen[:2000]], chosen[2000:]
    assert first[:, 0].all()
    assert first[:, 1:].double().mean().item() == pytest.approx(0.4, abs=0.03)
    assert chosen[:2000].unique().tolist() == list(range(10))
    assert second.unique().tolist() == list(range(4, 10))
    assert drawn(torch.arange(4) < 2, 20, 3, rng).shape == (20, 3)
    for few in (torch.arange(9) < 1, torch.arange(9) < 8):
        with pytest.raises(AttackError, match="of 9 public examples have the property"):
            drawn(few, 20, 3, rng)


@pytest.mark.parametrize("noise", [0.0, 0.5, 30.0])
def test_the_strength_of_a_ridge_is_that_with_the_least_error_on_what_was_left_out(rng, noise):
    x = torch.randn(15, 6, generator=rng).double()
    y = x @ torch.randn(6, generator=rng).double() + noise * torch.randn(15, generator=rng).double()
    scale = x.square().sum(1).mean()

    def fitted(rows, strength):
        return torch.linalg.solve(x[rows].T @ x[rows] + strength * scale * torch.eye(6), x[rows].T @ y[rows])

    errors = []
    for strength in RIDGES:
        out = [(x[i] @ fitted(torch.arange(15) != i, strength) - y[i]) ** 2 for i in range(15)]
        errors.append(sum(map(float, out)))
    best = RIDGES[errors.index(min(errors))]
    torch.testing.assert_close(ridge(x, y[:, None])[0], fitted(torch.arange(15) >= 0, best))
    assert ridge(x.float(), y[:, None].float()).dtype == torch.float32
    assert ridge(torch.zeros(4, 3), torch.ones(4, 2)).tolist() == [[0.0] * 3] * 2


def test_shares_of_classes_are_counts_over_all_rounds_of_a_client():
    _, y, seen, task = scene(4, targets=3, model=NET)
    told = [replace(one, knowledge=Knowledge(labels=own)) for one, own in zip(seen, y, strict=True)]
    told = [replace(one, client=client) for one, client in zip(told, (0, 0, 7), strict=True)]
    attack = adversary.build("label_distribution(labels=given)")
    assert attack.by_client
    scores = attack(told, task, 0).scores
    both = y[:2].flatten().bincount(minlength=2) / 8
    torch.testing.assert_close(scores, torch.stack([both, both, y[2].bincount(minlength=2) / 4]))
