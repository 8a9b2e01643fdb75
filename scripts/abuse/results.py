"""`thorns gate`, `thorns export` and `thorns report`: thresholds, names of files, and results that were damaged."""

from abuse.case import Case
from abuse.damage import all_of, append, cut, folder, link, mode, remove, replace, write

SCORES = "done/attacks/idlg-iterations-2-restarts-1-eb74fb/scores.jsonl"

GATES = (
    Case("gate", 2, "Missing argument 'DIR'"),
    Case("gate nowhere", 2, "nowhere"),
    Case("gate tiny.toml", 2, "tiny.toml"),
    Case("gate pictures", 2, "pictures"),
    Case("gate plain --lpips off", 2, "no scored attack: run `thorns attack plain --attack"),
    Case("gate done", 2, "lpips was not scored on any target"),
    Case("gate done --lpips off --psnr high", 2, "the threshold of psnr is a number or 'off', not 'high'"),
    Case("gate done --lpips off --psnr nan", 2, "psnr"),
    Case("gate done --lpips off --psnr inf", 2, "psnr"),
    Case("gate done --limit psnr", 2, "--limit takes METRIC=VALUE"),
    Case("gate done --limit pnsr=20", 2, "pnsr"),
    Case("gate done --psnr off --ssim off --lpips off", 2, "off"),
    Case("gate done --lpips off --cell nothing*", 2, "nothing*"),
    Case("gate swept --lpips off --cell sign*", 2, "sign*"),
    Case("gate done --lpips off --attack idgl", 2, "unknown attack 'idgl'; did you mean 'idlg'?"),
    Case("gate done --lpips off --metric plug:nothing", 2, "plug.py has no 'nothing'"),
    Case("gate done --lpips off --truth truth.safetensors", 2, "--truth is for captures of another app: add --model"),
    Case("gate done --lpips off --psnr 0", 1, "LEAK 'done': idlg"),
    Case("gate done --lpips off --psnr 99 --ssim 1 --json", 2, "not decided: the attack is too weak"),
    Case("gate done --lpips off", 2, "scores.jsonl, line 1 is damaged", write(SCORES, "scrap\n")),
    Case("gate done --lpips off", 2, "scores.jsonl", cut(SCORES, 40)),
    Case("gate done --lpips off", 2, "scores.jsonl", write(SCORES, "[1, 2]\n")),
    Case("gate done --lpips off", 2, "scores.jsonl", write(SCORES, '{"round": 1}\n')),
    Case("gate done --lpips off", 2, "scores.jsonl", replace(SCORES, '"psnr": ', '"psnr": "high", "was": ')),
    Case("gate done --lpips off", 2, "no scored attack", remove(SCORES)),
    Case("gate done --lpips off", 2, "none of 0 targets was scored", write(SCORES, "")),
    Case("gate done --lpips off", 2, "experiment.toml", write("done/experiment.toml")),
    Case("gate swept --lpips off", 2, "plan.json", write("swept/plan.json", "{}")),
    Case("gate swept --lpips off", 2, "plan.json", cut("swept/plan.json")),
)

EXPORTS = (
    Case("export done", 2, "Missing option '--to'"),
    Case("export done --to out.xlsx", 2, "out.xlsx"),
    Case("export done --to out", 2, "out"),
    Case("export done --to ''", 2, "does not end in .csv, .jsonl, .parquet: name a file that does"),
    Case("export nowhere --to out.csv", 2, "nowhere"),
    Case("export pictures --to out.csv", 2, "pictures"),
    Case("export done --to out.csv", 2, "out.csv is there already", write("out.csv", "kept")),
    Case("export done --to pictures --overwrite", 2, "pictures"),
    Case("export done --to pictures.csv --overwrite", 2, "pictures.csv", folder("pictures.csv")),
    Case("export done --to new/out.csv", 0, "new/out.csv: 3 rows of targets"),
    Case("export done --to tiny.toml/out.csv", 2, "tiny.toml is not a folder: choose another"),
    Case(
        "export done --to locked/out.csv",
        2,
        "locked/out.csv cannot be written: permission denied",
        all_of(folder("locked"), mode("locked", 0o555)),
        as_user=True,
    ),
    Case("export done --to /dev/full --overwrite", 2, "/dev/full"),
    Case("export done --to out.csv", 2, "out.csv is there already", link("out.csv", "nowhere")),
    Case("export done --to out.csv --what images", 2, "'images' is not one of"),
    Case("export plain --to out.csv", 0, "out.csv: 1 rows of targets"),
    Case("export done --to tensorboard:tiny.toml", 2, "tiny.toml"),
    Case("export done --to tensorboard:", 2, "tensorboard:FOLDER"),
    Case("export done --to out.csv", 2, "metrics.jsonl", write("done/metrics.jsonl", "scrap\n{}\n")),
)

REPORTS = (
    Case("report", 2, "Missing argument 'DIR'"),
    Case("report nowhere", 2, "nowhere"),
    Case("report tiny.toml", 2, "tiny.toml"),
    Case("report pictures", 2, "pictures"),
    Case("report app", 2, "app"),
    Case("report done", 2, "experiment.toml", write("done/experiment.toml")),
    Case("report done", 0, "report: done/report.html", remove("pictures/train/apple/00.png")),
    Case("report swept", 2, "plan.json", write("swept/plan.json", "[]")),
    Case("report swept", 2, "plan.json", replace("swept/plan.json", '"cells"', '"rows"')),
    Case("report done", 2, "report", write("done/report", "a file")),
    Case("report done", 2, "permission denied", mode("done", 0o555), as_user=True),
    Case("report done", 0, "report: done/report.html", append("done/metrics.jsonl", '{"round": 3, "acc')),
)

BOUNDS = (
    Case("bound", 2, "Missing argument 'DIR'"),
    Case("audit-dp", 2, "Missing argument 'DIR'"),
    Case("audit-dp nowhere", 2, "nowhere is not a run directory"),
    Case("audit-dp done", 2, "promises no epsilon: use dp_sgd"),
    Case("audit-dp done --trials -1", 2, "-1 is not in the range"),
    Case("audit-dp done --confidence 2", 2, "2.0 is not in the range"),
    Case("bound nowhere", 2, "nowhere is not a run directory"),
    Case("bound plain", 2, "plain has no captures"),
    Case("bound done --rounds 9", 2, "done has no captures of --rounds 9 --clients all"),
    Case("bound done --clients one", 2, "'one' does not select clients"),
    Case("bound done --limit -1", 2, "Invalid value for '--limit'"),
    Case("bound done --draws 1", 2, "Invalid value for '--draws'"),
    Case("bound done --at home", 2, "'home' is not one of"),
    Case("bound done --directions 9999999999999999999999", 0, "1,299 equations for 432 unknowns"),
    Case("bound done", 2, "experiment.toml is not a TOML file", write("done/experiment.toml")),
    Case("bound done", 2, "client-00.safetensors", cut("done/captures/round-0001/client-00.safetensors")),
    Case("bound done", 2, "is not the data that done was made with", remove("pictures/train/apple/00.png")),
    Case("bound swept", 2, "as it is a sweep: name one of the folders in its runs/"),
)

CASES = (*BOUNDS, *GATES, *EXPORTS, *REPORTS)
