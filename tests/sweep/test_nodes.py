import sys

import psutil
import pytest

from lab.sweep.nodes import Node, run_nodes
from tests.refusals import refused

WRITE = "import sys; open(sys.argv[1], 'a').write(sys.argv[2]); print('printed'); sys.exit(int(sys.argv[3]))"


def node(place, name, status=0, **about):
    command = [sys.executable, "-S", "-c", WRITE, str(place / "order"), name, str(status)]
    return Node(name=name, command=command, output=place / "log", **about)


def test_nodes_run_in_order_and_those_that_need_one_that_failed_do_not(tmp_path):
    states = []
    a = node(tmp_path, "a", is_finished=lambda: True)
    b = node(tmp_path, "b", needs=[a])
    c = node(tmp_path, "c", status=3, needs=[b])
    d = node(tmp_path, "d", needs=[c])
    e = node(tmp_path, "e", status=4)
    nodes = [a, b, c, d, e]
    assert run_nodes(nodes, report=lambda one: states.append((one.name, one.state))) == 3
    assert (tmp_path / "order").read_text() == "bce"
    assert [one.state for one in nodes] == ["finished", "finished", "failed", "waiting", "failed"]
    assert states[:4] == [("a", "finished"), ("b", "running"), ("b", "finished"), ("c", "running")]
    assert (tmp_path / "log").read_text().split() == ["printed"] * 3
    assert run_nodes([node(tmp_path, name) for name in "xyz"], jobs=3) == 0


def test_children_are_killed_where_something_fails_here(tmp_path):
    def fail(one):
        if one.state == "finished":
            raise ValueError(one.name)

    asleep = Node(name="b", command=[sys.executable, "-S", "-c", "import time; time.sleep(60)", str(tmp_path)])
    with pytest.raises(ValueError, match="a"):
        run_nodes([node(tmp_path, "a"), asleep], jobs=2, report=fail)
    assert [p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in (p.info["cmdline"] or [])] == []
    with refused("nowhere: cannot be started "):
        run_nodes([Node(name="a", command=["nowhere"])])
