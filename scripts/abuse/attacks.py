"""`thorns attack` on runs: what to attack, with what, and captures or results that were damaged."""

import signal

from abuse.case import Case
from abuse.damage import all_of, append, copy, cut, flip, folder, link, mode, remove, replace, write
from abuse.stage import ATTACK

CAPTURE = "done/captures/round-0001/client-01.safetensors"
QUICK = f"attack done --no-lpips --attack '{ATTACK}'"
FRESH = remove("done/attacks")
SLOW = "attack done --no-lpips --attack 'idlg(iterations=100000, restarts=1, solved=0)'"
HELD = "done/attacks/idlg-iterations-100000-restarts-1-solved-0-a3c3ae/.lock"

ASKED = (
    Case("attack", 2, "Missing argument 'DIR'"),
    Case("attack nowhere", 2, "nowhere is not a run directory"),
    Case("attack tiny.toml", 2, "tiny.toml is not a run directory"),
    Case("attack pictures", 2, "pictures is not a run directory"),
    Case("attack swept", 2, "as it is a sweep: name one of the folders in its runs/"),
    Case("attack app/captures", 2, "holds captures of another app: add --model"),
    Case("attack plain", 2, "plain has no captures: run with -c capture=1"),
    Case("attack done --attack idgl", 2, "unknown attack 'idgl'; did you mean 'idlg'?"),
    Case("attack done --attack ''", 2, "cannot read the spec ''"),
    Case("attack done --attack 'idlg + dlg'", 2, "an attack is one name(...), not a sum"),
    Case("attack done --attack 'idlg(iterations=0)'", 2, "idlg: iterations=0 is not allowed"),
    Case("attack done --attack 'idlg(iterations=-5)'", 2, "idlg: iterations=-5 is not allowed"),
    Case("attack done --attack 'idlg(iterations=1e5)'", 2, "idlg: iterations=100000.0 is not allowed"),
    Case("attack done --attack 'matching(priors=[tv(-1)])'", 2, "tv: weight=-1 is not allowed"),
    Case("attack done --attack 'matching(priors=tv)'", 2, "matching: priors is a list of priors"),
    Case("attack done --attack 'matching(objective=cosinus)'", 2, "unknown objective 'cosinus'; did you mean 'cosine'?"),
    Case("attack done --attack 'matching(optimizer=lbfgs(iterations=inf))'", 2, "iterations='inf' is not allowed"),
    Case("attack done --attack plug:Nothing", 2, "plug.py has no 'Nothing'"),
    Case("attack done --attack plug:Raises", 2, "plug:Raises is a Raises, not an attack"),
    Case("attack done --no-lpips --attack plug:Guesses", 1, "IndexError: list index out of range"),
    Case("attack done --no-lpips --attack plug:WrongShape", 1, "the attack answered with the shape (1, 1)"),
    Case("attack done --rounds 7", 2, "has captures of rounds 1 to 1 and clients 0 to 2, none of --rounds 7"),
    Case("attack done --rounds one", 2, "rounds"),
    Case("attack done --rounds 3-1", 2, "rounds"),
    Case("attack done --rounds -1", 2, "rounds"),
    Case("attack done --clients 99", 2, "none of --rounds all --clients 99"),
    Case("attack done --limit -1", 2, "Invalid value for '--limit'"),
    Case("attack done --limit many", 2, "'many' is not a valid int"),
    Case("attack done --grant everything", 2, "everything"),
    Case("attack done --worker thread", 2, "'thread' is not one of"),
    Case("attack done --device tpu", 2, "'tpu' is not one of"),
    Case("attack done --device cuda", 2, "torch sees no GPU here"),
    Case("attack done --threads 100000", 2, "Invalid value for '--threads'"),
    Case("attack done --judge nowhere", 2, "nowhere is not a run directory"),
    Case("attack done --judge pictures", 2, "pictures is not a run directory"),
    Case("attack done --metric plug:nothing", 2, "plug.py has no 'nothing'"),
    Case("attack done --metric plug:number", 2, "plug:number"),
    Case("attack done --mean 0.5", 2, "--mean is for captures of another app: add --model"),
    Case("attack done --input-shape 1,8,8", 2, "--input-shape is for captures of another app: add --model"),
    Case("attack done --attack=idlg --attck=x", 2, "No such option '--attck'"),
)

DAMAGED = (
    Case(QUICK, 0, "the capture cannot be used", all_of(FRESH, cut(CAPTURE))),
    Case(QUICK, 0, "the capture cannot be used", all_of(FRESH, flip(CAPTURE))),
    Case(QUICK, 0, "the capture cannot be used", all_of(FRESH, write(CAPTURE, b""))),
    Case(QUICK, 0, "the capture cannot be used", all_of(FRESH, copy("truth.safetensors", CAPTURE))),
    Case(
        QUICK,
        0,
        "it is of client 0 in round 1, not what its name says",
        all_of(FRESH, copy("done/captures/round-0001/client-00.safetensors", CAPTURE)),
    ),
    Case(QUICK, 0, "the capture cannot be used", all_of(FRESH, remove(CAPTURE), folder(CAPTURE))),
    Case(QUICK, 0, "the capture cannot be used", all_of(FRESH, link(CAPTURE, "/dev/null"))),
    Case(QUICK, 1, "the weights of its round cannot be used", all_of(FRESH, cut("done/captures/round-0001/model.safetensors"))),
    Case(
        QUICK, 1, "the weights of its round cannot be used", all_of(FRESH, remove("done/captures/round-0001/model.safetensors"))
    ),
    Case("attack done", 2, "has no captures", remove("done/captures")),
    Case("attack done", 2, "has no captures", all_of(remove("done/captures"), write("done/captures", "a file"))),
    Case("attack done", 2, "experiment.toml", write("done/experiment.toml", "rounds = 2\nrounds = 3\n")),
    Case(
        "attack done",
        2,
        "does not fit this version: unknown setting",
        append("done/experiment.toml", 'colour = "red"\n'),
    ),
    Case(
        "attack done",
        2,
        "names plug:Raises, which is code from outside Thorns",
        replace("done/experiment.toml", 'defense = "none"', 'defense = "plug:Raises"'),
    ),
    Case(QUICK, 2, "is not the data that done was made with", remove("pictures/train/apple/00.png")),
    Case(QUICK, 2, "pictures", remove("pictures")),
    Case(QUICK, 2, "done/attacks", all_of(FRESH, write("done/attacks", "a file"))),
    Case(QUICK, 2, "permission denied", all_of(FRESH, mode("done", 0o555)), as_user=True),
    Case(
        "attack done --no-lpips --attack 'idlg(iterations=3)'",
        2,
        "failed.jsonl, line 1 is damaged",
        write("done/attacks/idlg-iterations-3-7f68e2/failed.jsonl", "{\n{}\n"),
    ),
)

BETWEEN = (
    Case(SLOW, 130, "At most a minute of search is lost: the same command goes on.", signal=(signal.SIGINT, HELD)),
    Case(SLOW, 143, "At most a minute of search is lost: the same command goes on.", signal=(signal.SIGTERM, HELD)),
    Case(SLOW, 2, "is being written by another attack: wait for it", meanwhile=(SLOW, HELD)),
)

CASES = (*ASKED, *DAMAGED, *BETWEEN)
