"""Probe a trained model's effective context length with four needles: by length, by depth, or by method.

    python -m eval.probe MODEL [--option=value ...] [--by=depth] [--distance=METHOD,...] [--plot] [-o FOLDER]

MODEL is a run folder (its newest checkpoint is taken), a checkpoint in it, or a Hugging Face folder with a
tokenizer.json. Options left out are those of the run's own `probe` section. A Hugging Face folder has the section's
defaults, steps of an eighth of its window, and needs a haystack:

    python -m eval.probe runs/cpu_demo
    python -m eval.probe runs/cpu_demo --tests=500 --max_length=320 --step=16 --plot
    python -m eval.probe runs/cpu_demo --tests=500 --sequential --error=0.01
    python -m eval.probe runs/cpu_demo --thresholds=[0.5,0.9] --confidence=0.99
    python -m eval.probe runs/cpu_demo/checkpoints/tokens-000000004000000 --haystack=essays.txt --seed=1
    python -m eval.probe runs/cpu_demo --distance=rerope:window=96
    python -m eval.probe models/Llama-3.1-8B --haystack=PaulGrahamEssays.json --protocol=released_llama31 --step=8192

--sequential stops a length as soon as the verdict that all tests would give is known up to --error. --protocol=released
and released_llama31 run the tests of the released script of arXiv:2410.18745, prompt for prompt.

--by=depth counts each number at its own depth and length (Figure 4 of the paper), and says in which third of the text
failures lie (Table 4; eval/probing/by_depth.py has the definitions). Tests that training recorded in cases/ with the
same prompts are not run again:

    python -m eval.probe runs/cpu_demo --by=depth --plot
    python -m eval.probe runs/tiny_2k --by=depth --lengths=512,1024,1536,2048 --depths=20 --tests=500 --plot

Several methods in --distance are compared on the same tests, at the training length unless --lengths names others
(Table 1; the methods are in eval/engine/methods.py, each with the settings that the paper compares at). Parameters
after a colon replace derived ones. McNemar's exact test judges the difference to rope, corrected for the number of
methods (Holm; eval/engine/statistics.py); an asterisk marks significance at 0.05:

    python -m eval.probe runs/tiny_2k --distance=rope,ntk,yarn,rerope,self_extend,dca,string --plot
    python -m eval.probe runs/tiny_2k --distance=rope,string,string:released_scaling=true,string:shift=1024,window=64

Every finished test is kept in tests-TOKENS-KEY.jsonl, in FOLDER or eval/ of the run (runs/probe-NAME for a Hugging Face
folder). After Ctrl-C (exit status 75) or a crash the same command continues, and a command that asks for more tests,
lengths, thresholds or another --by reuses the existing ones. Results are beside it: probe-TOKENS-HASH/ (FOLDER itself
with -o) with probes.jsonl and cases/ as training writes them, heatmap-TOKENS-HASH.jsonl by depth, methods.jsonl.
"""

from __future__ import annotations

from collections.abc import Sequence

from eval.engine.command import Request
from eval.engine.run import Measure, run_measure
from eval.probing.by_depth import ByDepth
from eval.probing.by_length import ByLength
from eval.probing.by_method import ByMethod
from eval.probing.tests import NeedleMeasure, ProbeOptions
from lab.command import start
from lab.errors import ConfigError

OTHERS = {  # options that --by=... reads
    "length": ("step", "max_length", "threshold", "thresholds", "sequential", "error"),
    "depth": ("lengths", "depths"),
    "method": ("lengths", "train_len"),
}


class Probe(NeedleMeasure):
    """Needle tests of one model, shown by one of three measures."""

    @classmethod
    def chosen(cls, request: Request) -> type[Measure]:
        """Choose what tests are shown by, and refuse options that it does not read."""
        options: ProbeOptions = request.options
        by = options.by or ("method" if len(request.distances) > 1 else "length")
        names = {name for other, given in OTHERS.items() if other != by for name in given} - {*OTHERS[by]}
        given = {name: getattr(options, name) for name in sorted(names)}
        faults = [
            f"--{name}={','.join(map(str, value)) if isinstance(value, tuple) else value}: would be ignored with "
            f"--by={by}; leave it out"
            for name, value in given.items()
            if value is not None
        ]
        if by != "method" and len(request.distances) > 1:
            faults.append(f"--distance={','.join(request.distances)}: --by={by} takes one method; leave --by out")
        if by == "method":
            own = "several methods are set by this command itself; leave it out"
            faults += [f"--{key}={value}: {own}" for key, value in request.overrides.items()]
        if faults:
            raise ConfigError(*faults)
        return {"length": ByLength, "depth": ByDepth, "method": ByMethod}[by]


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit status."""
    return run_measure(Probe, arguments)


if __name__ == "__main__":
    start(main)
