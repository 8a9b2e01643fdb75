"""`thorns attack --model`, `thorns gate --model` and `thorns fit-rule`: captures of an app that is not ours."""

import signal
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from abuse.case import Before, Case
from abuse.damage import all_of, cut, folder, mode, remove, write
from abuse.stage import ATTACK

NET = "--model net:net --input-shape 1,6,6 --classes 3"
AUDIT = f"attack app {NET} --attack '{ATTACK}'"
GATE = f"gate app {NET} --attack '{ATTACK}' --lpips off"
FIT = f"fit-rule app {NET}"
HELD = "app/attacks/idlg-iterations-100000-restarts-1-solved-0-net-net-c8ac10/.lock"
SLOW = f"attack app {NET} --attack 'idlg(iterations=100000, restarts=1, solved=0)'"


def truth(**changes: torch.Tensor) -> Before:
    """The truth with another x or y of the first client."""

    def do(here: Path) -> None:
        told = load_file(here / "truth.safetensors")
        told |= {f"round-0001/client-00/{name}": value for name, value in changes.items()}
        save_file(told, here / "truth.safetensors")

    return do


def renamed(here: Path) -> None:
    """A truth by other names."""
    save_file(
        {f"x{place}": value for place, value in enumerate(load_file(here / "truth.safetensors").values())},
        here / "truth.safetensors",
    )


AUDITS = (
    Case(f"attack nowhere {NET}", 2, "nowhere has no captures of these rounds and clients"),
    Case(f"attack pictures {NET}", 2, "pictures has no captures of these rounds and clients"),
    Case(f"attack tiny.toml {NET}", 2, "tiny.toml has no captures"),
    Case("attack app --model net:net", 2, "--model needs the shape of one input, such as --input-shape 1,8,8"),
    Case("attack app --model net:net --input-shape 1x6x6", 2, "--model needs the shape of one input"),
    Case("attack app --model net:net --input-shape 0,6,6", 2, "--model needs the shape of one input"),
    Case("attack app --model net:net --input-shape 1,6,6 --classes 1", 2, "Invalid value for '--classes'"),
    Case("attack app --model net:net --input-shape 1,6,6 --classes 10", 2, "its answer has the shape (2, 3), not (2, 10)"),
    Case("attack app --model net:net --input-shape 3,8,8 --classes 3", 2, "does not take two inputs of the shape (3, 8, 8)"),
    Case("attack app --model net:net --input-shape 99999,99999,99999 --classes 3", 2, "(99999, 99999, 99999)"),
    Case("attack app --model net --input-shape 1,6,6", 2, "the model is named as module:function"),
    Case("attack app --model net.py:net --input-shape 1,6,6", 2, "ModuleNotFoundError: No module named 'net.py'"),
    Case("attack app --model ../net:net --input-shape 1,6,6", 2, "the model is named as module:function"),
    Case("attack app --model net: --input-shape 1,6,6", 2, "the model is named as module:function"),
    Case("attack app --model nowhere:net --input-shape 1,6,6", 2, "ModuleNotFoundError: No module named 'nowhere'"),
    Case("attack app --model net:nothing --input-shape 1,6,6", 2, "AttributeError: module 'net' has no attribute 'nothing'"),
    Case("attack app --model net:broken --input-shape 1,6,6", 2, "RuntimeError: no GPU here"),
    Case("attack app --model net:leaves --input-shape 1,6,6", 2, "SystemExit: 3"),
    Case("attack app --model net:number --input-shape 1,6,6", 2, "net:number gives an int, not a torch module"),
    Case("attack app --model net:answer --input-shape 1,6,6", 2, "TypeError: 'int' object is not callable"),
    Case(
        "attack app --model net:Picky --input-shape 1,6,6",
        2,
        "TypeError: Picky.__init__() missing 1 required",
    ),
    Case("attack app --model net:Branching --input-shape 1,6,6 --classes 3", 2, "torch.func cannot vectorise it"),
    Case("attack app --model bad_syntax:net --input-shape 1,6,6", 2, "SyntaxError: invalid syntax (bad_syntax.py, line 1)"),
    Case("attack app --model net:other --input-shape 1,6,6 --classes 3", 2, "the capture is not of this model"),
    Case(f"{AUDIT} --mean 0.5", 2, "--mean and --std take one number per channel each"),
    Case(f"{AUDIT} --mean 0.5 --std 0", 2, "--mean and --std take one number per channel each"),
    Case(f"{AUDIT} --mean nan --std 1", 2, "--mean and --std take one number per channel each"),
    Case(f"{AUDIT} --mean a --std b", 2, "--mean and --std take one number per channel each"),
    Case(f"{AUDIT} --mean 0.5,0.5,0.5 --std 1,1,1", 2, "one number per channel, and inputs of 1,6,6 have 1"),
    Case(f"{AUDIT} --defense prun", 2, "unknown defense 'prun'; did you mean 'prune'?"),
    Case(f"{AUDIT} --grant labels", 2, "labels cannot be granted, as no truth is known here"),
    Case(f"{AUDIT} --rounds 9", 2, "has no captures of these rounds and clients"),
    Case(f"{AUDIT} --device cuda", 2, "torch sees no GPU here"),
    Case(f"{AUDIT} --judge done", 2, "--judge is for runs"),
    Case(f"{AUDIT} --noise-ratio", 2, "--noise-ratio is for runs"),
    Case(AUDIT, 2, "app/captures has no captures", all_of(remove("app/captures"), folder("app/captures"))),
    Case(
        AUDIT, 0, "round 1, client 1 failed: the capture cannot be used", cut("app/captures/round-0001/client-01.safetensors")
    ),
    Case(AUDIT, 2, "none of the 2 targets could be attacked", cut("app/captures/round-0001/model.safetensors")),
    Case(AUDIT, 2, "app/attacks", write("app/attacks", "a file")),
    Case(AUDIT, 2, "permission denied", mode("app", 0o555), as_user=True),
    Case(f"attack app {NET} --no-lpips --attack plug:Guesses", 2, "IndexError: list index out of range"),
    Case(SLOW, 130, "At most a minute of search is lost: the same command goes on.", signal=(signal.SIGINT, HELD)),
    Case(SLOW, 143, "At most a minute of search is lost: the same command goes on.", signal=(signal.SIGTERM, HELD)),
    Case(SLOW, 2, "is being written by another attack: wait for it", meanwhile=(SLOW, HELD)),
)

GATES = (
    Case("gate app", 2, "app holds captures of another app: add --model"),
    Case(f"gate app {NET} --attack idlg", 2, "name it with --truth FILE.safetensors"),
    Case(f"{GATE} --truth nowhere.safetensors", 2, "nowhere.safetensors cannot be read: no such file or directory"),
    Case(f"{GATE} --truth pictures", 2, "pictures cannot be read: is a directory"),
    Case(f"{GATE} --truth tiny.toml", 2, "tiny.toml cannot be read: it is damaged"),
    Case(f"{GATE} --truth truth.safetensors", 2, "truth.safetensors cannot be read: it is damaged", cut("truth.safetensors")),
    Case(
        f"{GATE} --truth truth.safetensors",
        2,
        "names nothing that was captured: it needs tensors round-0001/client-00/x",
        renamed,
    ),
    Case(
        f"{GATE} --truth truth.safetensors",
        2,
        "must be floats in [0, 1] of the shape (1, 1, 6, 6)",
        truth(x=torch.zeros(1, 1, 5, 5)),
    ),
    Case(f"{GATE} --truth truth.safetensors", 2, "must be floats in [0, 1]", truth(x=torch.full((1, 1, 6, 6), 255.0))),
    Case(f"{GATE} --truth truth.safetensors", 2, "must be floats in [0, 1]", truth(x=torch.full((1, 1, 6, 6), torch.nan))),
    Case(
        f"{GATE} --truth truth.safetensors",
        2,
        "must be of the shape (1, 1, 6, 6), not (2, 1, 6, 6)",
        truth(x=torch.rand(2, 1, 6, 6), y=torch.zeros(2, dtype=torch.int64)),
    ),
    Case(f"{GATE} --truth truth.safetensors", 2, "must be 1 classes below 3 as int64", truth(y=torch.tensor([7]))),
    Case(f"{GATE} --truth truth.safetensors", 2, "does not explain the captured update", truth(x=torch.rand(1, 1, 6, 6))),
    Case(
        f"{GATE} --truth truth.safetensors",
        2,
        "is not readable",
        mode("truth.safetensors", 0),
        as_user=True,
    ),
    Case(f"gate nowhere {NET} --attack idlg --truth truth.safetensors", 2, "nowhere has no captures"),
    Case(f"{GATE} --truth truth.safetensors --device cuda", 2, "torch sees no GPU here"),
)

FITS = (
    Case("fit-rule", 2, "Missing argument 'DIR'"),
    Case("fit-rule app", 2, "Missing option '--model'"),
    Case("fit-rule app --model net:net", 2, "Missing option '--truth'"),
    Case(f"{FIT} --truth nowhere.safetensors", 2, "nowhere.safetensors cannot be read"),
    Case(f"{FIT} --truth truth.safetensors --save app", 2, "app is there already: name a new folder with --save"),
    Case(f"{FIT} --truth truth.safetensors --save tiny.toml/new", 2, "tiny.toml/new"),
    Case(f"{FIT} --truth truth.safetensors --device cuda", 2, "torch sees no GPU here"),
    Case(f"{FIT} --truth truth.safetensors", 2, "names nothing that was captured", renamed),
    Case(f"{FIT} --truth truth.safetensors", 1, "No rule explains the updates", truth(x=torch.zeros(1, 1, 6, 6))),
    Case(f"fit-rule nowhere {NET} --truth truth.safetensors", 2, "nowhere has no captures"),
    Case(
        "fit-rule app --model net:other --input-shape 1,6,6 --classes 3 --truth truth.safetensors",
        2,
        "the capture is not of this model",
    ),
    Case(
        "fit-rule app --model net:broken --input-shape 1,6,6 --classes 3 --truth truth.safetensors", 2, "RuntimeError: no GPU"
    ),
)

CASES = (*AUDITS, *GATES, *FITS)
