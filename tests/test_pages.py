"""Links and files that the pages name are there, docs/settings.md is what the code says, and commands have one name."""

import re
import signal
from collections import Counter
from pathlib import Path

import pytest

from lab import cli
from lab.analysis import run as analysis

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(page for name in (".", "benchmarks", "docs", "log") for page in (ROOT / name).glob("*.md"))
HISTORY = [ROOT / "CHANGELOG.md", ROOT / "LOG.md", *(ROOT / "log").glob("*.md")]  # names what there was
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"^( *)```.*?^\1```$", re.M | re.S)


def anchors(page):
    """List the anchors of a page's headings as GitHub derives them; repeated ones are numbered."""
    headings = re.findall(r"^#+ +(.+?) *$", CODE.sub("", page.read_text()), re.M)
    slugs = [re.sub(r"[^\w\- ]", "", re.sub(LINK, "", heading).lower()).replace(" ", "-") for heading in headings]
    yield from re.findall(r'<a id="([^"]+)">', page.read_text())
    seen = Counter()
    for slug in slugs:
        yield slug if not seen[slug] else f"{slug}-{seen[slug]}"
        seen[slug] += 1


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_relative_link_and_anchor_leads_somewhere(page):
    for link in LINK.findall(CODE.sub("", page.read_text())):
        place, _, anchor = link.partition("#")
        if "://" not in link and not link.startswith("../../actions/"):  # which GitHub has
            target = page.parent / place if place else page
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link


FILE = re.compile(r"`([\w./-]+)`")
FOLDERS = ("lab", "eval", "tests", "configs", "sweeps", "experiments", "benchmarks", "docs", "notebooks")
SUFFIXES = (".py", ".md", ".sh", ".ipynb")
# or of others
TO_WRITE = {"numbers.py", "steps.py", "partial_pi.py", "test_partial_pi.py", "NAME.py", "TABLE.yaml", "pred.py"}
TRACKED = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("[!.]*/**/*.*")} | {p.name for p in ROOT.glob("*.*")}


@pytest.mark.parametrize("page", [page for page in PAGES if page not in HISTORY], ids=str)
def test_every_file_that_a_page_names_exists(page):
    named = {name for name in FILE.findall(page.read_text()) if "/" in name.strip("/") or name.endswith(SUFFIXES)}
    for name in sorted(name for name in named if Path(name).name not in TO_WRITE and name[0] != "."):
        if name.split("/")[0] in FOLDERS or name.endswith(SUFFIXES):
            assert (ROOT / name).exists() or any(f"/{path}".endswith(f"/{name}") for path in TRACKED), name


def test_every_page_is_linked_from_the_readme_or_from_a_page_that_is():
    linked, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        linked.add(page)
        targets = {(page.parent / link.partition("#")[0]).resolve() for link in LINK.findall(page.read_text())}
        waiting += [target for target in targets & set(PAGES) if target not in linked]
    assert set(PAGES) - linked == set()


def test_the_index_lists_every_page_once():
    index = ROOT / "docs" / "index.md"
    listed = re.findall(r"^- \[[^\]]+\]\((\w+\.md)\)", index.read_text(), re.M)
    assert sorted(listed) == [page.name for page in PAGES if page.parent == index.parent and page != index]


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) < 120


@pytest.mark.filterwarnings("ignore:.*found in sys.modules")
def test_the_settings_page_is_that_of_the_code(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")  # which the page changes
    before = signal.getsignal(signal.SIGTERM)  # which commands set when they start
    written = "".join(cli.page())
    signal.signal(signal.SIGTERM, before)
    assert (ROOT / "docs" / "settings.md").read_text() == written, "run probe-lab docs > docs/settings.md"


@pytest.mark.parametrize("name", ["probes", "lengths", "distances", "contexts", "recall"])
def test_the_columns_of_every_table_are_on_the_page_of_the_api(name):
    page = (ROOT / "docs" / "api.md").read_text()
    table = page.split(f"| `{name}()` | |\n|---|---|\n")[1].split("\n\n")[0]
    columns, meanings = zip(*re.findall(r"^\| `(\w+)` \| (.+) \|$", table, re.M), strict=True)
    assert columns == getattr(analysis, name.upper())
    assert all(meanings)
