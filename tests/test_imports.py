"""Imports point one way, are made at the top, and bring heavy packages only where those are used."""

import ast
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LAYERS = [  # a module imports its own part and parts of earlier lines; parts of one line do not know each other
    ("lab.errors", "lab.files"),
    ("lab.schema", "lab.launch"),
    ("lab.settings",),
    ("lab.positions", "lab.masks", "lab.skip", "lab.shape", "lab.counts"),
    ("lab.data", "lab.model", "lab.runs"),
    ("eval",),
    ("lab.callbacks",),
    ("lab.inheritance", "lab.weights", "lab.processes"),
    ("lab.config",),
    ("lab.assembly",),
    ("lab.loading", "lab.session", "lab.recipe"),
    ("eval.subject", "lab.estimate"),
    ("eval.needle_tests", "eval.ruler.measuring", "eval.harness_distance"),
    ("lab.fit", "lab.merge", "lab.prepare", "lab.longrecipe"),
    ("eval.probe", "eval.entropy", "eval.impact", "eval.precision", "eval.shape"),
    ("eval.perplexity", "eval.passkey", "eval.lines", "eval.heatmap", "eval.methods", "eval.harness"),
    ("eval.ruler.__main__",),
]
RANKS = {part: rank for rank, parts in enumerate(LAYERS) for part in parts}
COMMANDS_THAT_SERVE_AS_LIBRARIES = {("lab.session", "eval.picture")}  # a finished run draws its own picture
TORCH_USERS = (
    "lab.data.module",
    "lab.model.attention",
    "lab.model.backends",
    "lab.model.block_masks",
    "lab.model.cache",
    "lab.model.decoder",
    "lab.model.devices",
    "lab.model.flex",
    "lab.model.fused",
    "lab.model.generate",
    "lab.model.huggingface",
    "lab.model.huggingface_tensors",
    "lab.model.inspection",
    "lab.model.interface",
    "lab.model.kernels",
    "lab.model.layout",
    "lab.model.linear",
    "lab.model.loss",
    "lab.model.norm",
    "lab.model.reference",
    "lab.model.rotary",
    "lab.model.rounds",
    "lab.model.segments",
    "lab.model.sharding",
    "lab.model.tiles",
    "lab.model.training",
    "lab.model.visibility",
    "lab.runs.environment",
    "lab.runs.shards",
    "lab.runs.state",
    "lab.callbacks",
    "lab.weights",
    "lab.assembly",
    "lab.estimate.memory",
    "lab.estimate.stand_ins",
    "lab.processes",
    "lab.loading",
    "lab.merge",
    "eval.protocol",
    "eval.harness",
    "eval.harness_answers",
    "eval.harness_scoring",
    "eval.held_out",
    "eval.effective_length",
    "eval.attention_entropy",
    "eval.entropy",
    "eval.impact",
    "eval.measuring",
    "eval.precision",
    "eval.running",
    "eval.shape",
    "eval.shift_difference",
    "eval.sliding",
    "eval.subject",
)
HEAVY = {  # package: who may import it at module level; everybody else imports it where it is used, or not at all
    "torch": TORCH_USERS,
    "lightning": ("lab.data.module", "lab.model.training", "lab.callbacks", "lab.assembly", "lab.processes"),
    **dict.fromkeys(("wandb", "datasets", "matplotlib", "pyarrow", "zstandard"), ()),
    **dict.fromkeys(("transformers", "flash_attn", "xformers", "triton", "lm_eval"), ()),
}


def sources():
    found = {}
    for path in sorted([*ROOT.glob("lab/**/*.py"), *ROOT.glob("eval/**/*.py")]):
        words = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(words[:-1] if words[-1] == "__init__" else words)] = path.read_text()
    return found


def belongs(module, part):
    return module == part or module.startswith(part + ".")


def part_of(module):
    return max((part for part in RANKS if belongs(module, part)), key=len, default=None)


def is_guard(node, name):
    """Recognise `if TYPE_CHECKING:` and `if __name__ == "__main__":`."""
    return isinstance(node, ast.If) and any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(node.test))


def targets(node, modules):
    """List the modules an import statement names; a name taken from a package is a module where one is so called."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if node.level:
        return [f"relative import of {node.module}"]
    taken = [f"{node.module}.{alias.name}" for alias in node.names]
    return sorted({name if name in modules else node.module for name in taken})


def imports(tree, modules, skip=(), inside_functions=False):
    """List what a module imports, leaving out the bodies of the named guards and, unless asked for, of functions."""
    found, stack = [], [(tree, False)]
    while stack:
        node, local = stack.pop()
        if isinstance(node, (ast.Import, ast.ImportFrom)) and local == inside_functions:
            found += targets(node, modules)
        if any(is_guard(node, name) for name in skip):
            continue
        local = local or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        stack += [(child, local) for child in ast.iter_child_nodes(node)]
    return found


def edges(code, **options):
    """Map every module to the modules of ours that it imports."""
    out = {}
    for module, source in code.items():
        named = imports(ast.parse(source), code, **options)
        out[module] = sorted(
            {name for name in named if name.startswith(("lab", "eval", "relative")) and name != module}
        )
    return out


def upward(code):
    faults = []
    for module, named in edges(code).items():
        here = part_of(module)
        if here is None and module not in ("lab", "eval"):
            faults.append(f"{module}: belongs to no layer; give its part a place in LAYERS")
            continue
        for target in named:
            there = part_of(target)
            below = there is not None and RANKS[there] < RANKS.get(here, -1)
            if there != here and not below:
                faults.append(f"{module} imports {target}")
    return faults


def cycle(code):
    """Return the modules of a circle of imports, or nothing."""
    graph = {module: [t for t in named if t in code] for module, named in edges(code).items()}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return []


def local_imports(code):
    return [f"{module}: {t}" for module, named in edges(code, inside_functions=True).items() for t in named]


def imported_commands(code):
    commands = {m for m, s in code.items() if any(is_guard(n, "__name__") for n in ast.parse(s).body)}
    pairs = {(module, target) for module, named in edges(code).items() for target in named if target in commands}
    return sorted(pairs - COMMANDS_THAT_SERVE_AS_LIBRARIES)


def heavy_imports(code):
    faults = []
    for module, source in code.items():
        for name in imports(ast.parse(source), code, skip=("TYPE_CHECKING", "__name__")):
            package = name.split(".")[0]
            if package in HEAVY and not any(belongs(module, part) for part in HEAVY[package]):
                faults.append(f"{module} imports {name}")
    return faults


CHECKS = {
    "upward": upward,
    "cycle": cycle,
    "function_local": local_imports,
    "imported_command": imported_commands,
    "heavy_at_module_level": heavy_imports,
}
DEFECTS = [  # check, module, source: each must be found, or a clean tree would prove nothing
    ("upward", "lab.positions.x", "from lab.model import decoder"),
    ("upward", "lab.masks.x", "from lab.positions.plain import Plain"),
    ("upward", "lab.skip.x", "from lab.counts import PositionCounts"),
    ("upward", "lab.data.x", "import lab.model.segments"),
    ("upward", "eval.x", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from lab.callbacks import counting"),
    ("upward", "lab.model.x", "from . import decoder"),
    ("upward", "lab.newcomer", ""),
    ("cycle", "lab.errors", "from lab.positions import rope"),
    ("cycle", "lab.positions.plain", "from lab.positions import frequencies"),
    ("function_local", "lab.model.x", "def f():\n    from lab.errors import LabError"),
    ("function_local", "lab.model.x", "class A:\n    def f(self):\n        if self:\n            import eval.config"),
    ("imported_command", "lab.x", "from lab.fit import parse"),
    ("heavy_at_module_level", "lab.config", "import torch"),
    ("heavy_at_module_level", "lab.model.x", "try:\n    from xformers.ops import fmha\nexcept ImportError:\n    pass"),
    ("heavy_at_module_level", "lab.model.config", "from torch.nn import functional"),
]


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_imports_of_the_lab_and_the_evaluation(check):
    assert not check(sources())


@pytest.mark.parametrize(
    ("check", "module", "source"),
    DEFECTS,
    ids=[f"{n}_{check}_{module}" for n, (check, module, _) in enumerate(DEFECTS)],
)
def test_the_checks_find_a_planted_defect(check, module, source):
    code = sources()
    assert CHECKS[check](code | {module: code.get(module, "") + "\n" + source + "\n"})


def test_every_layer_and_permission_is_of_use():
    code = sources()
    for part in [*RANKS, *TORCH_USERS]:
        assert any(belongs(module, part) for module in code), f"{part}: gone; take it out of the tables"


def test_packages_hold_re_exports_only():
    packages = [path for folder in ("lab", "eval") for path in (ROOT / folder).rglob("__init__.py")]
    assert [str(path) for path in packages if len(path.read_text().splitlines()) > 40] == []


def loaded_by(module, before="sys"):
    """Import a module in a fresh process and list the heavy packages it brought."""
    words = (
        f"import sys, {before}; old = set(sys.modules); import {module}; "
        f"print(*(name for name in {tuple(HEAVY)} if name in sys.modules and name not in old))"
    )
    done = subprocess.run([sys.executable, "-c", words], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.parametrize(
    "module",
    [
        "lab.config",
        "lab.settings",
        "lab.fit",
        "lab.prepare",
        "eval.needles",
        "eval.picture",
        "eval.positions",
        "lab.model.huggingface_config",
        "lab.runs.folder",
        "lab.longrecipe",
        "lab.positions",
        "lab.skip",
    ],
)
def test_light_modules_load_nothing_heavy(module):
    assert loaded_by(module) == []


def test_a_session_loads_no_extra_beyond_what_lightning_itself_loads():
    assert loaded_by("lab.session", before="lightning") == []
