"""`thorns sweep` and `thorns compare`: files and lines that describe no sweep, and folders that are none."""

import signal

from abuse.case import Case
from abuse.damage import all_of, append, folder, mode, remove, replace, write

PLAN = "sweep sweep.toml --dry-run"
SMALL = "compare --dry-run --no-lpips -c \"dataset=imagefolder(path='pictures', size=12)\" -c model=linear -c batch-size=4"


FILES = (
    Case("sweep", 2, "Missing argument 'FILE'"),
    Case("sweep nowhere.toml", 2, "there is no file nowhere.toml"),
    Case("sweep pictures", 2, "pictures is not the folder of a sweep"),
    Case("sweep done", 2, "done is not the folder of a sweep"),
    Case("sweep done/experiment.toml", 2, "holds the settings of one run: `thorns run --config"),
    Case("sweep tiny.toml", 2, "holds the settings of one run: `thorns run --config"),
    Case("sweep net.py", 2, "net.py is not a TOML file"),
    Case("sweep truth.safetensors", 2, "truth.safetensors is not a TOML file"),
    Case(PLAN, 2, "sweep.toml is empty: a sweep has at least a table [run]", write("sweep.toml", "")),
    Case(f"{PLAN} --scale large", 2, "large"),
    Case(f"{PLAN} --workers -1", 2, "Invalid value for '--workers'"),
    Case("sweep sweep.toml --out tiny.toml", 2, "tiny.toml"),
    Case("sweep sweep.toml --out done", 2, "done"),
    Case(
        "sweep sweep.toml --out locked/new",
        2,
        "permission denied",
        all_of(folder("locked"), mode("locked", 0o555)),
        as_user=True,
    ),
    Case(PLAN, 2, "[run] there is no setting 'modle'; did you mean 'model'?", replace("sweep.toml", "model =", "modle =")),
    Case(PLAN, 2, "unknown defense 'prun'; did you mean 'prune'?", replace("sweep.toml", "prune(", "prun(")),
    Case(PLAN, 2, "ratio=5 is not allowed", replace("sweep.toml", "ratio=0.5", "ratio=5")),
    Case(PLAN, 2, "a '{' without a '}'", replace("sweep.toml", "ratio=0.5", "ratio={0.5")),
    Case(PLAN, 2, "an empty choice in the braces", replace("sweep.toml", "ratio=0.5", "ratio={0.5,}")),
    Case(PLAN, 2, "an empty list stands for nothing", replace("sweep.toml", "clients = 2", "clients = []")),
    Case(PLAN, 2, "clients = 0 is not allowed", replace("sweep.toml", "clients = 2", "clients = [2, 0]")),
    Case(PLAN, 2, "nothing is kept for the attacks: add capture", replace("sweep.toml", 'capture = "1"\n', "")),
    Case(PLAN, 2, "unknown attack 'idgl'; did you mean 'idlg'?", replace("sweep.toml", "idlg(", "idgl(")),
    Case(PLAN, 2, "seeds", replace("sweep.toml", "lpips = false", "seeds = [0, 0]")),
    Case(PLAN, 2, "seeds", replace("sweep.toml", "lpips = false", "seeds = 3")),
    Case(PLAN, 2, "seeds", replace("sweep.toml", "lpips = false", "seeds = [-1]")),
    Case(PLAN, 2, "the seeds stand above the tables", replace("sweep.toml", "clients = 2", "seed = 3")),
    Case(PLAN, 2, "a sweep names its own folders", replace("sweep.toml", "clients = 2", 'run-dir = "x"')),
    Case(PLAN, 2, "atacks", replace("sweep.toml", "attacks =", "atacks =")),
    Case(PLAN, 2, "is not a TOML file", append("sweep.toml", "[run]\n")),
    Case(PLAN, 2, "names plug:Raises, which is code from outside", replace("sweep.toml", "prune(ratio=0.5)", "plug:Raises")),
    Case(
        f"{PLAN} --allow plug:Raises",
        2,
        "does not work with model = 'linear' on imagefolder(path='pictures', size=12): KeyError",
        replace("sweep.toml", "prune(ratio=0.5)", "plug:Raises"),
    ),
    Case(PLAN, 2, "pictures", remove("pictures")),
    Case(PLAN, 2, "clients=2000 is more than", replace("sweep.toml", "clients = 2", "clients = 2000")),
    Case(PLAN, 2, "there is no table [run.x]", append("sweep.toml", '\n[targets.a]\nruns = ["x"]\n')),
    Case("sweep swept", 2, "sweep.toml is not a TOML file", write("swept/sweep.toml")),
    Case("sweep swept --workers 1", 0, "all of it is finished"),
    Case(
        "sweep sweep.toml --out held --workers 1",
        2,
        "another sweep is at work in",
        meanwhile=("sweep slow.toml --out held --workers 1", "held/.lock"),
        before=all_of(
            write("slow.toml", ""),
            lambda here: (here / "slow.toml").write_text(
                (here / "sweep.toml").read_text().replace("rounds = 2", "rounds = 1000000")
            ),
        ),
    ),
    Case(
        "sweep sweep.toml --out new --workers 1",
        130,
        "go on with: thorns sweep new",
        signal=(signal.SIGINT, "new/.lock"),
        before=replace("sweep.toml", "rounds = 2", "rounds = 1000000"),
    ),
    Case(
        "sweep sweep.toml --out new --workers 1",
        143,
        "go on with: thorns sweep new",
        signal=(signal.SIGTERM, "new/.lock"),
        before=replace("sweep.toml", "rounds = 2", "rounds = 1000000"),
    ),
    Case(
        "sweep sweep.toml --out new --workers 1 --allow plug:Raises",
        2,
        "KeyError",
        replace("sweep.toml", "prune(ratio=0.5)", "plug:Raises"),
    ),
)

COMPARED = (
    Case("compare", 2, "Missing argument 'SPEC ...'"),
    Case("compare prun", 2, "unknown defense 'prun'; did you mean 'prune'?"),
    Case("compare 'prune(ratio={0.5,0.9)'", 2, "a '{' without a '}'"),
    Case(f"{SMALL} none -c defense=prune", 2, "compare takes the defenses as arguments instead"),
    Case(f"{SMALL} none -c seed=3", 2, "compare takes --seeds instead"),
    Case(f"{SMALL} none --seeds 0", 2, "Invalid value for '--seeds'"),
    Case(f"{SMALL} none --targets 0", 2, "Invalid value for '--targets'"),
    Case(f"{SMALL} none --targets 1000000", 2, "clients=1000000 is more than"),
    Case(f"{SMALL} none --grant everything", 2, "everything"),
    Case(f"{SMALL} none --attack idgl", 2, "unknown attack 'idgl'; did you mean 'idlg'?"),
    Case(f"{SMALL} none --metric plug:nothing", 2, "plug.py has no 'nothing'"),
    Case(f"{SMALL} none --out tiny.toml", 2, "tiny.toml"),
    Case(f"{SMALL} plug:Unmade", 2, "ZeroDivisionError: division by zero"),
    Case(f"{SMALL} plug:Raises", 2, "does not work with model = 'linear' on imagefolder(path='pictures', size=12): KeyError"),
    Case("compare none --dry-run", 0, "mnist is not here yet, so nothing was tried on it"),
)

CASES = (*FILES, *COMPARED)
