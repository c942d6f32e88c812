"""The rows of the reliability table, and the tests of each."""

RESTART, PREPARED = "tests/test_restart.py", "tests/data/test_two_preparations.py"
RANDOM = "tests/torture/test_random_stops.py::test_a_run_stopped_at_random_moments_is_the_one_left_alone"
FAULTS = "tests/test_faults.py"
STOPS = "tests/test_stops.py"
CHANGED = "tests/data/test_changed_shards.py"
UNCHANGED = "tests/test_fit.py::test_probing_and_packing_in_the_background_change_no_number"
ROWS = {
    1: (
        "SIGKILL at random moments, some inside a save",
        [*(f"{RANDOM}[{name}]" for name in ("fp32", "bf16", "ddp", "fsdp")), RESTART],
    ),
    2: (
        "faults at each write, fsync, rename, close of a save",
        [
            "tests/test_saving.py",
            f"{FAULTS}::test_a_background_save_that_fails_is_noticed_before_the_next",
            "tests/runs/test_checkpoints.py",
            "tests/runs/test_folder.py",
        ],
    ),
    3: ("saved on some processes, resumed on others", ["tests/test_resumption.py"]),
    4: (
        "the same batches with any prefetch and ranks",
        ["tests/data/test_module.py", "tests/data/test_prefetching.py", UNCHANGED],
    ),
    5: ("damaged shards are refused", ["tests/data/test_preparation_faults.py", "tests/data/test_opening.py", CHANGED]),
    6: ("flipped bytes are found by probe-lab verify", ["tests/test_verify.py"]),
    7: (
        "NaN or Inf in one rank's loss or gradient",
        [f"{FAULTS}::test_a_step_that_is_not_finite_ends_all_ranks"],
    ),
    8: (
        "signals at moments from start-up on",
        [
            f"{RANDOM}[signals]",
            f"{STOPS}::test_every_signal_by_every_way",
            f"{STOPS}::test_what_comes_to_one_rank_ends_all[early_sigterm]",
            f"{STOPS}::test_a_probe_that_was_cut_short_is_run_whole_by_the_resumption",
            f"{STOPS}::test_only_a_second_ctrl_c_ends_a_run_at_once",
        ],
    ),
    9: ("a probe that fails", [f"{FAULTS}::test_a_probe_that_fails_is_recorded_and_costs_no_step", UNCHANGED]),
    10: ("one checkpoint at any batch size and processes", ["tests/eval/test_batches_and_ranks.py"]),
    11: ("wandb missing, refused, stalled, failing", ["tests/test_dashboard.py"]),
    12: (
        "a full disk",
        [
            f"{FAULTS}::test_a_save_that_fails_ends_the_run_with_its_reason",
            f"{RESTART}::test_too_little_room_is_refused_before_anything_is_written",
            f"{PREPARED}::test_a_full_disk_is_one_line_and_leaves_nothing_half_written",
        ],
    ),
    13: ("mutated configs and command lines", ["tests/test_hostile.py"]),
    14: (
        "a rank or an agent is killed",
        [
            f"{STOPS}::test_what_is_left_of_a_killed_run_saves_or_ends_in_a_line",
            f"{STOPS}::test_a_rank_lost_on_another_node_ends_the_run_which_resumes",
            f"{STOPS}::test_what_comes_to_one_rank_ends_all",
            f"{STOPS}::test_the_ranks_of_a_launcher_killed_before_the_first_step_end",
            f"{STOPS}::test_a_rank_whose_launcher_ended_before_it_could_look_ends",
        ],
    ),
    15: ("a committed loss file", ["tests/test_fit.py"]),
    16: ("many tiny steps, a probe every 500", ["tests/torture/test_long.py"]),
    17: ("preparation killed, two at once", [PREPARED]),
    18: (
        "chains of three stops and more, on 1, 2 and 4 processes",
        [
            *(f"{RANDOM}[{kind}_chain]" for kind in ("plain", "anchor", "selected", "evidence")),
            "tests/test_resumption.py",
            "tests/test_foreign_files.py",
        ],
    ),
}
STEADY = (2, 3, 4, 5, 6, 7, 9, 10, 12, 13, 15)  # which no timing can make fail; `make slow` runs these in full
