"""Names from outside the package: what is imported, when, and what is said of code that does not work."""

import os
import sys
from pathlib import Path

import pytest

import adversary
import client_defenses
from client_defenses import Chain
from fl_app import data, models
from fl_app.core import plugins, spec
from fl_app.core.parsing import SpecError
from fl_app.core.plugins import NotAllowed
from helpers import plugged


def untouched(*modules):
    return not Path("imported").exists() and not set(modules) & set(sys.modules)


def test_a_name_is_imported_only_after_it_was_allowed(outside):
    name = outside()
    with pytest.raises(NotAllowed, match=rf"^{name}:Halve is code from outside Thorns: add --allow {name}:Halve") as caught:
        client_defenses.build(f"{name}:Halve")
    assert "\n" not in str(caught.value)
    assert untouched(name)
    plugins.allow([f"{name}:Other"])  # by name: a module is not allowed as a whole
    with pytest.raises(NotAllowed):
        client_defenses.build(f"{name}:Halve")
    assert untouched(name)
    plugins.allow([f"{name}:Halve"])
    built = client_defenses.build(f"{name}:Halve(factor=0.25)")
    assert built.factor == 0.25
    assert client_defenses.build(f"{name}:Halve(0.25)") == built
    assert spec.text_of(built, client_defenses.DEFENSES) == f"{name}:Halve(factor=0.25)"
    chain = client_defenses.build(f"prune(ratio=0.5) + {name}:Halve")
    assert isinstance(chain, Chain)


def test_only_names_can_be_allowed():
    for wrong in ("os", "os.system", "os:", ":system", "os:path:join", "my file:Name", "-c:x"):
        with pytest.raises(SpecError, match=r"code is allowed by name, as package\.module:Name"):
            plugins.allow([wrong])


def test_what_is_allowed_is_allowed_again_by_a_command_that_goes_on(monkeypatch):
    monkeypatch.setenv(plugins.ALLOW, "")
    assert plugins.again(["thorns", "sweep"]) == ["thorns", "sweep"]
    plugins.allow([])
    assert plugins.allowed() == []
    plugins.allow(["a.b:C", " d:E "])
    plugins.allow(["a.b:C"])
    assert plugins.allowed() == ["a.b:C", "d:E"]
    assert plugins.again(["thorns"]) == ["thorns", "--allow", "a.b:C", "--allow", "d:E"]
    plugins.know(Chain)  # one of ours, which nobody has to allow
    assert plugins.allowed() == ["a.b:C", "d:E"]
    plugins.know(Path)
    assert plugins.allowed()[2:] == [f"{Path.__module__}:Path"]


def test_names_are_found_in_what_people_type():
    named = plugins.named_in
    assert named("a.b:C(x={1,2}) + prune + d:E") == ["a.b:C", "d:E"]
    assert named("{a:B,c:D}(p=1)") == ["a:B", "c:D"]
    assert named("matching(objective=a:B(0.1), priors=[tv(1), c:D])") == ["a:B", "c:D"]
    assert named("imagefolder(path='os:system')") == []
    assert named('imagefolder(path="it\'s os:system")') == []
    assert named("localhost:9092, prune(ratio=0.5)") == []


@pytest.mark.parametrize(
    ("text", "wanted", "said"),
    [
        ("", "Halv", "has no 'Halv'; it has: Path"),
        ("raise RuntimeError('no licence\\nfound')", "Halve", "RuntimeError: no licence found"),
        ("import sys; sys.exit(3)", "Halve", "SystemExit: 3"),
        ("import a_module_that_nobody_has", "Halve", "No module named 'a_module_that_nobody_has'"),
        ("def broken(:", "Halve", "SyntaxError"),
        ("Halve = 3", "Halve", "is an int, not a defense"),
        ("class Halve: pass", "Halve", r"makes a Halve, not a defense \(client_defenses.base.Defense\)"),
        ("def Halve(): return 3", "Halve", "makes an int, not a defense"),
        ("def Halve(model): return 3", "Halve", "missing 1 required positional argument: 'model'"),
        ("def Halve(*, ratio: 'Nowhere' = 3): pass", "Halve", "NameError: name 'Nowhere' is not defined"),
        (plugged.DEFENSE, "Halve(faktor=1)", "has no setting 'faktor'; did you mean 'factor'"),
        (plugged.DEFENSE, "Halve(factor=0)", "greater than 0"),
    ],
)
def test_code_that_does_not_work_is_said_in_one_line(outside, text, wanted, said):
    name = outside(text)
    plugins.allow([f"{name}:{wanted.partition('(')[0]}"])
    with pytest.raises(SpecError, match=said) as caught:
        client_defenses.build(f"{name}:{wanted}")
    assert "\n" not in str(caught.value)


def test_a_module_that_is_not_there_is_said_to_be_missing(outside):
    name = outside()
    plugins.allow([f"{name}x:Halve"])
    with pytest.raises(SpecError, match=f"the defense {name}x:Halve cannot be used: ModuleNotFoundError: No module named"):
        client_defenses.build(f"{name}x:Halve")


def test_a_file_that_lies_about_does_not_stand_in_for_an_installed_module(outside):
    Path("colorsys.py").write_text("raise RuntimeError('the wrong one')")
    plugins.allow(["colorsys:rgb_to_hsv"])
    with pytest.raises(SpecError, match="missing 3 required positional arguments"):
        client_defenses.build("colorsys:rgb_to_hsv")
    assert sys.path[-1] == os.getcwd()


def test_models_and_data_sets_are_plugged_in_too(outside, tmp_path, monkeypatch):
    monkeypatch.setenv("THORNS_DATA", str(tmp_path / "cache"))
    net, stripes = f"{outside(plugged.MODEL)}:net", f"{outside(plugged.DATA)}:stripes"
    for refused in (lambda: models.build(net, (1, 8, 8), 3), lambda: data.load(stripes)):
        with pytest.raises(NotAllowed):
            refused()
    assert untouched()
    plugins.allow([net, stripes])
    loaded = data.load(f"{stripes}(size=10)")
    model = models.build(f"{net}(width=2)", loaded.input_shape, loaded.num_classes)
    assert model(loaded.train.at(slice(0, 2))[0]).shape == (2, 3)
    plugins.allow([f"{net.partition(':')[0]}:scaled"])
    assert models.size_of(net, (1, 8, 8), 3) == 4 * 9 + 4 + 3 * 4 * 36 + 3
    assert models.size_of(f"{net.partition(':')[0]}:scaled", (1, 8, 8), 3) == 0  # it cannot be known before it is made
    for wrong, said in (
        (f"{net.partition(':')[0]}:wrong", r"makes an int, not a model \(torch.nn.modules.module.Module\)"),
        (stripes, "takes 0 positional arguments but 2 were given"),
    ):
        plugins.allow([wrong])
        with pytest.raises(SpecError, match=said):
            models.build(wrong, (1, 8, 8), 3)


def test_a_plugged_in_data_set_must_look_like_one(outside, tmp_path, monkeypatch):
    monkeypatch.setenv("THORNS_DATA", str(tmp_path / "cache"))
    name = outside(plugged.DATA)
    plugins.allow([f"{name}:{kind}" for kind in ("floats", "impostor")])
    with pytest.raises(
        data.DataError,
        match=r"train_x and train_y must be uint8 \(n, channels, height, width\), float32 \(n, floats\) or int64 \(n, length\)",
    ):
        data.load(f"{name}:floats")
    with pytest.raises(data.DataError, match="is kept under the name 'mnist', which is one of ours"):
        data.load(f"{name}:impostor")


def test_an_installed_package_registers_names(outside, package):
    package("halving", "[thorns.defenses]\nhalve = halving:Halve\nprune = halving:Halve\n", plugged.DEFENSE)
    assert untouched("halving")  # nothing is imported until it is asked for
    built = client_defenses.build("halve(factor=0.25)")
    assert built.factor == 0.25
    assert plugins.packages("defense", "halve") == ["halving"]
    assert type(client_defenses.build("prune")).__module__ == "client_defenses.prune"  # nobody takes our names
    # What is written of it can be read again, by a worker process for example.
    assert client_defenses.build(spec.text_of(built, client_defenses.DEFENSES)) == built
    with pytest.raises(SpecError, match="unknown defense 'halv'; did you mean 'halve'"):
        client_defenses.build("halv")


def test_installed_packages_that_do_not_work_or_agree_are_named(outside, package):
    package("one_package", "[thorns.defenses]\ntwice = one_package:Halve\nlost = one_package:Lost\n", plugged.DEFENSE)
    package("other_package", "[thorns.defenses]\ntwice = other_package:Halve\n")
    with pytest.raises(SpecError, match="the defense 'twice' is registered by one_package and other_package: uninstall one"):
        client_defenses.build("twice")
    with pytest.raises(SpecError, match="the defense lost cannot be used: AttributeError"):
        client_defenses.build("lost")


@pytest.mark.parametrize(
    "given",
    [
        {"defense": "none + os:system"},
        {"run": {"model": ["lenet", "os:system"]}},
        {"attacks": ["idlg", "matching(objective=os:system)"]},
        {"targets": {"dataset": "{mnist,os:system}"}},
    ],
)
def test_settings_from_elsewhere_are_refused_by_the_name_of_where(given, monkeypatch):
    keys = ("defense", "model", "attacks", "dataset")
    monkeypatch.setenv("THORNS_ALLOW", "")
    with pytest.raises(NotAllowed, match=r"^their\.toml: \w+ names os:system, .*add --allow os:system \(or set THORNS_ALLOW="):
        plugins.check_named("their.toml", given, keys)
    monkeypatch.setenv("THORNS_ALLOW", "a:b, os:system")
    plugins.check_named("their.toml", given, keys)


def test_paths_and_titles_are_no_names():
    plugins.check_named("their.toml", {"run-dir": "os:system", "dataset": "imagefolder(path='os:system')"}, ("dataset",))


PIECES = """
from dataclasses import dataclass

import torch
from adversary.objectives import Objective


@dataclass(frozen=True, kw_only=True)
class Power(Objective):
    exponent: float = 1.0

    def __call__(self, dummy, seen, progress):
        return torch.stack([(dummy[name] - seen[name]).abs().pow(self.exponent).sum() for name in seen]).sum()


def thing():
    return 3
"""


def test_pieces_of_attacks_are_plugged_in_by_their_kind(outside):
    name = outside(PIECES)
    text = f"matching(objective={name}:Power(exponent=1.5))"
    with pytest.raises(NotAllowed, match=f"{name}:Power is code from outside"):
        adversary.build(text)
    plugins.allow([f"{name}:Power", f"{name}:thing"])
    built = adversary.build(text)
    assert built.objective.exponent == 1.5
    assert adversary.build(adversary.text_of(built)) == built
    for wrong in (f"matching(objective={name}:thing)", f"matching(priors=[{name}:thing])"):
        with pytest.raises(SpecError, match=f"{name}:thing makes an int, not an? (objective|prior)"):
            adversary.build(wrong)
    with pytest.raises(SpecError, match="makes a Power, not a prior"):
        adversary.build(f"matching(priors=[{name}:Power])")
    with pytest.raises(SpecError, match="it names an objective"):
        adversary.Matching(objective=adversary.Matching().optimizer)
