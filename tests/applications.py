#!/usr/bin/env python3
"""Runs the experiments on the thesis' applications: `make test-applications`.

tests/applications.py WEIR OUT EXPERIMENT... -- OPTION...

It fails if an experiment was left out, or if the applications failed or waited with pinned memory, which has no flaw. The
other claims depend on how busy the machine is: those that do not hold are printed.
"""

import json
import subprocess
import sys
from pathlib import Path

weir, out, *rest = sys.argv[1:]
experiments, options = rest[: rest.index("--")], rest[rest.index("--") + 1 :]
command = [weir, "lab", "run", *experiments, "--quick", "--html", "--out", out, *options]
status = subprocess.run(command).returncode
if status:
    sys.exit(status)
failed = []
for experiment in json.loads((Path(out) / "claims.json").read_text()):
    name = experiment["id"]
    if why := experiment.get("left_out"):
        failed.append(f"{name}: {why}")
        continue
    pinned = [claim for claim in experiment["claims"] if claim["low"] is None and "pinned" in claim["name"]]
    if not pinned:
        failed.append(f"{name}: no claim about pinned memory")
    failed += [f"{name}: {claim['name']}: {claim['weir']}" for claim in pinned if not claim["holds"]]
    for claim in experiment["claims"]:
        if not claim["holds"]:
            print(f"{name}: does not hold: {claim['name']}: {claim['weir']} {claim['unit']}")
for line in failed:
    print(f"failed: {line}", file=sys.stderr)
sys.exit(bool(failed))
