"""Functions that the tasks of this folder name: how answers are scored, and how programs are run."""

import re
import subprocess
import sys


def words_found(doc, results):
    """Share of the best answer's words that the first line of what was said holds."""
    said = results[0].strip().split("\n")[0].lower().split()
    shares = [sum(word in said for word in answer.lower().split()) / len(answer.split()) for answer in doc["answers"]]
    return {"score": max(shares)}


def number_found(doc, results):
    """Whether the first number that was said is the one asked for."""
    return {"score": float(re.findall(r"[0-9]+", results[0])[:1] == doc["answer"][:1])}


def programs(resps, docs):
    return [[doc["prompt"] + said for said in each] for each, doc in zip(resps, docs, strict=True)]


def pass_at_k(references, predictions, k):
    (tests,), (candidates,) = references, predictions
    passed = [runs(f"{program}\n{tests}") for program in candidates]
    return {f"pass@{n}": float(any(passed[:n])) for n in k}


def runs(program):
    finished = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, timeout=20, check=False)
    return finished.returncode == 0
