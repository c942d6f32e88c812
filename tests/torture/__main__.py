"""Run the rows of the reliability table that have not been run yet, and write benchmarks/RELIABILITY.md.

    python -m tests.torture [ROW ...] [--share=1.0]

--share is the part of the full counts; below 1, tests that are marked as slow are omitted too. A row that was run with
that share or more is skipped, unless it is named. Each result is a line of benchmarks/reliability.jsonl, so a stop
loses the row that was running only.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from xml.etree import ElementTree

from lab.model.devices import hardware
from lab.train.environment import commit, versions
from tests.torture.rows import ROWS

ROOT = Path(__file__).resolve().parents[2]
RESULTS, TABLE = ROOT / "benchmarks/reliability.jsonl", ROOT / "benchmarks/RELIABILITY.md"
LIMIT_S = 45 * 60  # for one row
HEAD = """\
# Reliability

Written by `make torture` from `reliability.jsonl`, the newest result of each row. `count` is of kills,
signals or steps where the tests choose how many, else of tests; `share` is the part of the full counts asked
for.

| row | what | count | share | failures | skipped | seconds | date | commit |
|---|---|---|---|---|---|---|---|---|
"""


def run_row(row, share):
    """Run a row's tests in a process of their own, and return what came of them."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        marks = "not gpu" if share >= 1 else "not gpu and not slow"
        words = ["-n", "2", "--dist", "worksteal", "-m", marks, f"--torture={share}", f"--junitxml={report}"]
        subprocess.run([sys.executable, "-m", "pytest", *ROWS[row][1], *words], cwd=ROOT, timeout=LIMIT_S, check=False)
        cases = list(ElementTree.parse(report).iter("testcase"))
    properties = [{p.get("name"): p.get("value") for p in case.iter("property")} for case in cases]
    result = {"row": row, "share": share, "date": datetime.now().astimezone().date().isoformat()}
    result |= {"seconds": round(time.monotonic() - begin), "tests": len(cases)}
    result["count"] = sum(int(one.get("count", 0)) for one in properties) or len(cases)
    result["failures"] = sum(case.find("failure") is not None or case.find("error") is not None for case in cases)
    result["skipped"] = sum(case.find("skipped") is not None for case in cases)
    result["notes"] = [one["note"] for one in properties if "note" in one]
    return result | {"commit": commit(), "hardware": hardware(), "versions": versions()}


def results():
    """Read the newest result of each row."""
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    return {result["row"]: result for result in map(json.loads, lines)}


def table(found):
    """Format the results, each with what it was run on."""
    text, machines = HEAD, set()
    for row, (title, _) in ROWS.items():
        one = found.get(row)
        if one is None:
            text += f"| {row} | {title} | not run | | | | | | |\n"
            continue
        values = [one[key] for key in ("count", "share", "failures", "skipped", "seconds", "date")]
        cells = [row, "; ".join([title, *one["notes"]]), *values, one["commit"][:10]]
        text += f"| {' | '.join(map(str, cells))} |\n"
        packages = ", ".join(f"{name} {number}" for name, number in one["versions"].items())
        built = one["hardware"]
        machines.add(f"Machine: {built['cpu']}, {built['cores']} cores, GPUs {built['gpus'] or 'none'}; {packages}.")
    return text + "".join(f"\n{machine}\n" for machine in sorted(machines))


def read_row(text):
    if text not in map(str, ROWS):
        raise argparse.ArgumentTypeError(f"no row {text!r}; the rows are {min(ROWS)} to {max(ROWS)}")
    return int(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", type=read_row, metavar="ROW")
    parser.add_argument("--share", type=float, default=1.0)
    asked = parser.parse_args()
    for row in asked.rows or ROWS:
        done = results().get(row)
        if asked.rows or done is None or done["share"] < asked.share:
            with RESULTS.open("a") as file:
                file.write(json.dumps(run_row(row, asked.share)) + "\n")
        TABLE.write_text(table(results()))


if __name__ == "__main__":
    main()
