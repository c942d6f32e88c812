"""The harness's own entry points run the lab's models, and score as eval.harness does."""

import pytest

from eval.harness.__main__ import main
from eval.harness.registered import register
from lab.errors import LabError
from tests.eval.harness.parts import TASKS, rows_in

lm_eval = pytest.importorskip("lm_eval")
pytestmark = pytest.mark.usefixtures("harness_files")


def test_the_registered_model_scores_as_the_command_does(run_folder, tmp_path):
    from lm_eval.tasks import TaskManager

    register()
    register()
    own = (f"--include_path={TASKS}", "--run_own_code", "-o", str(tmp_path))
    method = ("--distance=string:shift=24,window=8", "--max_length=48")
    assert main([str(run_folder), "--tasks=lab_choice", *own, *method]) == 0
    results = lm_eval.simple_evaluate(
        model="probe_lab",
        model_args=f"model={run_folder},distance=string:shift=24;window=8,max_length=48",
        tasks=["lab_choice"],
        task_manager=TaskManager(include_path=str(TASKS), include_defaults=False),
        device="cpu",
    )
    expected = rows_in(tmp_path, "lab_choice")
    found = results["results"]["lab_choice"]
    assert [found[f"{metric},none"] for metric in ("acc", "acc_norm")] == [
        expected[metric]["score"] for metric in ("acc", "acc_norm")
    ]
    with pytest.raises(LabError, match="no such folder|is not a run folder"):
        lm_eval.simple_evaluate(model="probe_lab", model_args=f"model={tmp_path / 'none'}", tasks=["lab_choice"])
    with pytest.raises(LabError, match="^--truncate=right: must be one of"):
        lm_eval.simple_evaluate(
            model="probe_lab", model_args=f"model={run_folder},truncate=right", tasks=["lab_choice"]
        )
