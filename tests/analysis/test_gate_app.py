"""The gate on other people's captures: judged against what their clients used, or not at all."""

import json

import torch
from safetensors.torch import save_file

import adversary
from fl_app.analysis.gate import LEAK, PASSED, UNJUDGED
from helpers.foreign_app import IDLG, MODULE, capture
from helpers.gate import run_gate


def save_truth(path, images, labels=(0, 1)):
    tensors = {}
    for client, (image, label) in enumerate(zip(images, labels, strict=True)):
        tensors |= {
            f"round-0001/client-{client:02d}/x": image[None],
            f"round-0001/client-{client:02d}/y": torch.tensor([label]),
        }
    save_file(tensors, path)
    return path


def app_gate(*words, attack=IDLG):
    facts = ("--model", f"{MODULE}:plain", "--input-shape", "1,6,6", "--classes", 3, "--lpips", "off")
    return run_gate("captures", *facts, *(("--attack", attack) if attack else ()), *words)


def test_captures_of_another_app_are_judged_against_what_its_clients_used(theirs):
    images = capture(theirs, "plain")
    truth = save_truth(theirs / "truth.safetensors", images)
    code, out, told = app_gate("--truth", truth)
    assert code == LEAK, told
    assert "granted: nothing beyond the protocol" in out
    assert "2 targets" in out
    assert len(list(theirs.glob("attacks/gate-*/scores.jsonl"))) == 1
    code, _, _ = app_gate("--truth", truth, "--psnr", "100", "--ssim", "1")
    assert code == PASSED
    assert len(list(theirs.glob("attacks/gate-*"))) == 1  # nothing was rebuilt again


def test_without_a_name_the_attack_is_standard(theirs, monkeypatch):
    assert adversary.DEFAULT == "standard"
    monkeypatch.setattr(adversary, "DEFAULT", "standard(minutes=0.02)")
    truth = save_truth(theirs / "truth.safetensors", capture(theirs, "plain", clients=1), labels=(0,))
    _, out, _ = app_gate("--truth", truth, "--json", attack=None)
    found = json.loads(out)["findings"]
    assert {one["attack"] for one in found} == {"standard(minutes=0.02)"}
    assert {one["by_truth"] for one in found} == {False, True}
    assert all("ended by the clock" in one["ledger"] for one in found)


def test_reconstructions_of_older_captures_are_not_judged(theirs):
    truth = save_truth(theirs / "truth.safetensors", capture(theirs, "plain"))
    weak = "idlg(iterations=1, restarts=1)"
    app_gate("--truth", truth, attack=weak)
    save_truth(truth, [1 - image for image in capture(theirs, "plain", inputs=lambda x: 1 - x)])
    app_gate("--truth", truth, attack=weak)
    assert len(list(theirs.glob("attacks/gate-*"))) == 2


def test_the_defense_of_another_app_is_told_to_a_second_attacker(theirs):
    truth = save_truth(theirs / "truth.safetensors", capture(theirs, "plain"))
    _, out, told = app_gate("--truth", truth, "--defense", "prune(ratio=0.5)", "--json", attack="idlg(iterations=2)")
    assert {one["ledger"] for one in json.loads(out)["findings"]} == {"nothing beyond the protocol", "defense"}
    assert "cannot be checked" in told


def test_a_truth_from_which_the_updates_do_not_follow_never_passes(theirs):
    images = capture(theirs, "plain")
    truth = save_truth(theirs / "truth.safetensors", [1 - image for image in images])
    code, out, _ = app_gate("--truth", truth, attack="idlg(iterations=2)")
    assert code == UNJUDGED
    assert "round-0001/client-00 does not explain the captured update" in out
    code, out, _ = app_gate("--truth", save_truth(truth, images), attack="idlg(iterations=2)")
    assert code == UNJUDGED
    assert "the attack is too weak: undefended updates stay within the limits" in out


def test_a_truth_by_other_numbers_is_given_to_the_clients_whose_updates_it_explains(theirs):
    images = capture(theirs, "plain", clients=3)
    turned = [images[2], images[0], images[1]]
    truth = save_truth(theirs / "truth.safetensors", turned, labels=(2, 0, 1))
    code, _, told = app_gate("--truth", truth)
    assert code == LEAK
    assert "does not explain" not in told
    for named, client in ((0, 2), (1, 0), (2, 1)):
        assert f"round-0001/client-{named:02d} in truth.safetensors is what client {client} used, by its update" in told
    assert "is what client" not in app_gate("--truth", save_truth(truth, images, labels=(0, 1, 2)))[2]


def test_a_forgotten_normalisation_is_named(theirs):
    images = capture(theirs, "plain", inputs=lambda x: (x - 0.1307) / 0.3081)
    truth = save_truth(theirs / "truth.safetensors", images)
    code, _, told = app_gate("--truth", truth, attack="idlg(iterations=2)")
    assert code == UNJUDGED
    assert "add --mean 0.1307 --std 0.3081" in told
    code, _, told = app_gate("--truth", truth, "--mean", "0.1307", "--std", "0.3081")
    assert code == LEAK
    assert "--mean" not in told


def test_a_module_that_exits_is_no_leak(theirs):
    truth = save_truth(theirs / "truth.safetensors", capture(theirs, "plain"))
    (theirs / "script.py").write_text("import sys\nsys.exit(1)\n")
    code, _, told = app_gate("--model", "script:Net", "--truth", truth)
    assert code == UNJUDGED
    assert "script:Net cannot be called" in told


def test_a_truth_that_cannot_be_one_is_refused(theirs):
    images = capture(theirs, "plain")
    truth = theirs / "truth.safetensors"
    assert "--truth FILE.safetensors" in app_gate()[2]
    assert "--truth FILE.safetensors" in run_gate("captures")[2]
    for made, labels, hint in (
        (images, (0, 7), "classes below 3"),
        ([2 * image for image in images], (0, 1), "floats in [0, 1]"),
        ([image[:, :4] for image in images], (0, 1), "of the shape (1, 1, 6, 6)"),
    ):
        code, _, told = app_gate("--truth", save_truth(truth, made, labels))
        assert code == UNJUDGED
        assert hint in told
        assert str(truth) in told
    save_file({"x": images[0]}, truth)
    assert "names nothing that was captured" in app_gate("--truth", truth)[2]
    truth.write_bytes(b"damaged")
    assert "truth.safetensors cannot be read" in app_gate("--truth", truth)[2]
    assert not (theirs / "attacks").exists()


def test_members_of_another_app_are_found_among_candidates(theirs):
    images = capture(theirs, "plain")
    truth = save_truth(theirs / "truth.safetensors", images)
    others = torch.rand(120, 1, 6, 6, generator=torch.Generator().manual_seed(9))
    asked = theirs / "asked.safetensors"
    save_file(
        {"x": torch.cat([others, torch.stack(images)]), "y": torch.cat([torch.arange(120) % 3, torch.tensor([0, 1])])}, asked
    )
    words = ("--truth", truth, "--candidates", asked)
    code, out, told = app_gate(*words, "--tpr-at-fpr", "0.01:0.05", attack=None)
    assert code == LEAK, told
    assert "tpr_at_0.01 mean 1 " in out
    assert "granted: candidates" in out
    assert "count as in nobody's data" in told
    code, out, _ = app_gate(*words, "--tpr-at-fpr", "0.01:1.0", attack=None)
    assert (code, out.split()[0]) == (PASSED, "PASSED")
    code, _, told = app_gate("--truth", truth, "--tpr-at-fpr", "0.01:0.05", attack=None)
    assert code == UNJUDGED
    assert "needs --candidates FILE" in told
    code, out, _ = app_gate(*words, "--tpr-at-fpr", "0.001:0.05", attack=None)
    assert code == UNJUDGED
    assert "too few to tell a rate of 0.001" in out
