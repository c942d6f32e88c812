"""The rows of the reliability table, and the tests of each."""

RESTART, PREPARED = "tests/test_restart.py", "tests/data/test_two_preparations.py"
CHANGED = "tests/data/test_changed_shards.py"
UNCHANGED = "tests/test_fit.py::test_probing_and_packing_in_the_background_change_no_number"
FULL_SAVE = "tests/test_saving.py::test_a_save_that_fails_ends_the_run_with_its_reason"
ROWS = {
    1: ("SIGKILL at random moments, some inside a save", ["tests/torture/test_kills.py", RESTART]),
    2: (
        "faults at each write, fsync, rename, close of a save",
        ["tests/test_saving.py", "tests/runs/test_checkpoints.py", "tests/runs/test_folder.py"],
    ),
    3: ("saved on some processes, resumed on others", ["tests/test_resume_matrix.py"]),
    4: (
        "the same batches with any prefetch and ranks",
        ["tests/data/test_module.py", "tests/data/test_prefetching.py", UNCHANGED],
    ),
    5: ("damaged shards are refused", ["tests/data/test_preparation_faults.py", "tests/data/test_shards.py", CHANGED]),
    6: ("flipped bytes are found by probe-lab verify", ["tests/test_verify.py"]),
    7: ("NaN or Inf in one rank's loss or gradient", ["tests/test_not_finite.py"]),
    8: ("signals at moments from start-up on", ["tests/torture/test_moments.py", "tests/test_signals.py"]),
    9: ("a probe that fails", ["tests/test_probe_failures.py", UNCHANGED]),
    10: ("one checkpoint at any batch size and processes", ["tests/eval/test_batches_and_ranks.py"]),
    11: ("wandb missing, refused, stalled, failing", ["tests/test_dashboard.py"]),
    12: (
        "a full disk",
        [
            FULL_SAVE,
            f"{RESTART}::test_too_little_room_is_refused_before_anything_is_written",
            f"{PREPARED}::test_a_full_disk_is_one_line_and_leaves_nothing_half_written",
        ],
    ),
    13: ("mutated configs and command lines", ["tests/test_hostile.py"]),
    14: ("a rank or an agent is killed", ["tests/test_rank_deaths.py"]),
    15: ("a committed loss file", ["tests/test_fit.py"]),
    16: ("many tiny steps, a probe every 500", ["tests/torture/test_long.py"]),
    17: ("preparation killed, two at once", [PREPARED]),
    18: (
        "chains of three stops and more, on 1, 2 and 4 processes",
        ["tests/torture/test_chains.py", "tests/test_chains.py", "tests/test_foreign_files.py"],
    ),
}
STEADY = (2, 3, 4, 5, 6, 7, 9, 10, 12, 13, 15)  # which no timing can make fail; `make slow` runs these in full
