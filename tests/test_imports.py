"""Imports point one way, are made at the top, and bring heavy packages only where those are used."""

import ast
import functools
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LAYERS = """
lab.startup lab.errors lab.arrays lab.rows < lab lab.files lab.yaml < lab.schema < lab.plugins
< lab.looks lab.output < lab.draw lab.command < lab.launch < lab.meeting
< lab.positions lab.masks lab.skip lab.counts lab.evidence < lab.probe.limits < lab.probe.reach
< lab.data lab.model < lab.probe lab.runs < lab.config < lab.loading lab.testing lab.integrations < lab.train
< lab.recipes lab.jobs < lab.estimate
< lab.fit lab.sweep lab.prepare lab.verify lab.longrecipe lab.merge lab.export lab.cli
< eval.engine < eval
"""  # a part imports itself and the parts before a "<" that precedes it; the packages of eval are parts of one layer
RANKS = {part: rank for rank, parts in enumerate(LAYERS.split("<")) for part in parts.split()}
CALLBACKS = ("step", "recording", "saving", "probing")
HEAVY = {  # package: who may import it at module level; everybody else imports it where it is used, or not at all
    "lightning": (
        "lab.data.module",
        *(f"lab.train.{name}" for name in CALLBACKS),
        "lab.train.session",
        "lab.integrations.lightning",
    ),
    **dict.fromkeys(("wandb", "datasets", "pyarrow"), ()),
    "pandas": ("eval", "lab.integrations"),
    "scipy.stats": (),  # half a second, while scipy.special has the distributions
    "transformers": ("lab.integrations.transformers",),
    "lm_eval": ("lab.integrations.lm_eval",),
    **dict.fromkeys(("flash_attn", "xformers", "triton", "altair", "vl_convert"), ()),
}
LIGHT = (  # import no torch, so that a mistake in a config is reported at once
    "lab.config",
    "lab.fit",
    "lab.sweep.__main__",
    "lab.prepare",
    "lab.verify",
    "lab.longrecipe",
    "lab.cli",
    "lab.runs.folder",
    "lab.positions",
    "lab.skip",
    "lab.model.huggingface.config",
    "eval.needles",
    "eval.positions",
)


parse = functools.cache(ast.parse)


@functools.cache
def sources():
    found = {}
    for path in sorted([*ROOT.glob("lab/**/*.py"), *ROOT.glob("eval/**/*.py")]):
        words = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(words[:-1] if words[-1] == "__init__" else words)] = path.read_text()
    return found


def belongs(module, part):
    return module == part or module.startswith(part + ".")


def part_of(module):
    """Name the part that a module belongs to: the longest listed one, or else its package."""
    words = module.split(".")
    names = [".".join(words[:n]) for n in range(len(words), 1, -1)]
    return next((name for name in names if name in RANKS), ".".join(words[:2]))


def rank_of(part):
    return RANKS.get(part, RANKS["eval"] if part.startswith("eval.") else None)


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


@functools.cache
def statements(source, skip, inside_functions):
    """List the import statements, leaving out the bodies of the named guards and, unless asked for, of functions."""
    found, stack = [], [(parse(source), False)]
    while stack:
        node, local = stack.pop()
        if isinstance(node, (ast.Import, ast.ImportFrom)) and local == inside_functions:
            found.append(node)
        if any(is_guard(node, name) for name in skip):
            continue
        local = local or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        stack += [(child, local) for child in ast.iter_child_nodes(node)]
    return found


def imports(source, modules, skip=(), inside_functions=False):
    return [name for node in statements(source, skip, inside_functions) for name in targets(node, modules)]


def edges(code, **options):
    """Map every module to the modules of ours that it imports."""
    out = {}
    for module, source in code.items():
        lazy = {"skip": ("TYPE_CHECKING",)} if module == "lab" else {}  # its names are imported on first use
        named = imports(source, code, **lazy | options)
        out[module] = sorted(
            {name for name in named if name.startswith(("lab", "eval", "relative")) and name != module}
        )
    return out


def upward(code):
    faults = []
    for module, named in edges(code).items():
        here = part_of(module)
        if rank_of(here) is None and module not in ("lab", "eval"):
            faults.append(f"{module}: belongs to no layer; add its part to LAYERS")
            continue
        for target in named:
            there = part_of(target)
            below = rank_of(there) is not None and rank_of(there) < (rank_of(here) or 0)
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
    local = edges(code, inside_functions=True, skip=("__name__", "TYPE_CHECKING"))  # a command loads torch last
    return [f"{module}: {t}" for module, named in local.items() for t in named]


def imported_commands(code):
    commands = {m for m, s in code.items() if any(is_guard(n, "__name__") for n in parse(s).body)}
    pairs = {(module, target) for module, named in edges(code).items() for target in named if target in commands}
    return sorted(pairs)


def heavy_imports(code):
    faults = []
    for module, source in code.items():
        for name in imports(source, code, skip=("TYPE_CHECKING", "__name__")):
            package = next((package for package in HEAVY if belongs(name, package)), None)
            if package and not any(belongs(module, part) for part in HEAVY[package]):
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
    ("upward", "lab.masks.x", "from lab.positions.rope import Plain"),
    ("upward", "lab.skip.x", "from lab.counts import PositionCounts"),
    ("upward", "lab.data.x", "import lab.model.attention.segments"),
    ("upward", "lab.model.x", "from . import decoder"),
    ("upward", "lab.newcomer", ""),
    ("cycle", "lab.errors", "from lab.positions import rope"),
    ("cycle", "lab.positions.rope", "from lab.positions import frequencies"),
    ("function_local", "lab.model.x", "def f():\n    from lab.errors import LabError"),
    (
        "function_local",
        "lab.model.x",
        "class A:\n    def f(self):\n        if self:\n            import eval.engine.cases",
    ),
    ("imported_command", "lab.x", "from lab.fit import parse"),
    ("upward", "lab.train.session", "from eval.engine import cases"),
    ("upward", "eval.passkey.x", "from eval.ruler import metrics"),
    ("heavy_at_module_level", "lab.config", "import lightning"),
    ("heavy_at_module_level", "lab.model.x", "try:\n    from xformers.ops import fmha\nexcept ImportError:\n    pass"),
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


def test_every_layer_is_of_use():
    code = sources()
    for part in RANKS:
        assert any(belongs(module, part) for module in code), f"{part}: gone; remove it from LAYERS"


def test_packages_hold_re_exports_only():
    packages = [path for folder in ("lab", "eval") for path in (ROOT / folder).rglob("__init__.py")]
    assert [str(path) for path in packages if len(path.read_text().splitlines()) > 40] == []


LOAD = """
import importlib, sys
packages = lambda: {name.split(".")[0] for name in sys.modules}
for module in sys.argv[1:]:
    before = packages()
    importlib.import_module(module)
    print(module, *packages() - before)
"""


def test_light_modules_and_then_a_session_load_nothing_heavy_beyond_what_lightning_loads():
    words = [sys.executable, "-c", LOAD, *LIGHT, "lightning", "lab.train.session"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    lines = map(str.split, done.stdout.splitlines())
    loaded = {module: {"torch", *HEAVY} & set(names) for module, *names in lines}
    assert "torch" in loaded.pop("lightning")
    assert loaded == {module: set() for module in (*LIGHT, "lab.train.session")}


def test_evaluations_start_without_lightning():
    graph = edges(sources())
    reached, rest = (
        set(),
        [m for m in graph if m.startswith("eval.") and part_of(m) != "eval.demand"],
    )  # those plan training
    while rest:
        module = rest.pop()
        if module not in reached:
            reached.add(module)
            rest += graph.get(module, [])
    parts = (*HEAVY["lightning"], "lab.runs.shards")
    assert {module for module in reached for part in parts if belongs(module, part)} == set()
