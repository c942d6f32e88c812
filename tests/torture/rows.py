"""The rows of the reliability table, and the tests of each."""

from functools import partial

RESTART, PREPARED = "tests/test_restart.py", "tests/data/test_two_preparations.py"
RESUMPTION, CHANGED = "tests/test_resumption.py", "tests/data/test_changed_shards.py"
UNCHANGED = "tests/test_fit.py::test_probing_and_packing_in_the_background_change_no_number"


def in_file(path, *names):
    return [f"{path}::test_{name}" for name in names]


def at_random(*cases):
    path = "tests/torture/test_random_stops.py"
    return in_file(path, *(f"a_run_stopped_at_random_moments_is_the_one_left_alone[{case}]" for case in cases))


faults, stops = (partial(in_file, f"tests/test_{name}.py") for name in ("faults", "stops"))
SAVES = ["tests/test_saving.py", *faults("a_background_save_that_fails_is_noticed_before_the_next")]
SIGNALS = stops("every_signal_by_every_way", "what_comes_to_one_rank_ends_all[early_sigterm]")
SIGNALS += stops("a_probe_that_was_cut_short_is_run_whole_by_the_resumption", "only_a_second_ctrl_c_ends_a_run_at_once")
FULL = in_file(RESTART, "too_little_room_is_refused_before_anything_is_written")
FULL += in_file(PREPARED, "a_full_disk_is_one_line_and_leaves_nothing_half_written")
LOST = stops("what_is_left_of_a_killed_run_saves_or_ends_in_a_line", "what_comes_to_one_rank_ends_all")
LOST += stops("a_rank_lost_on_another_node_ends_the_run_which_resumes")
LOST += stops("the_ranks_of_a_launcher_killed_before_the_first_step_end")
LOST += stops("a_rank_whose_launcher_ended_before_it_could_look_ends")
CHAINS = at_random(*(f"{kind}_chain" for kind in ("plain", "anchor", "selected", "evidence")))
ROWS = {
    1: ("SIGKILL at random moments, some inside a save", [*at_random("fp32", "bf16", "ddp", "fsdp"), RESTART]),
    2: (
        "faults at each write, fsync, rename, close of a save",
        [*SAVES, "tests/runs/test_checkpoints.py", "tests/runs/test_folder.py"],
    ),
    3: ("saved on some processes, resumed on others", [RESUMPTION]),
    4: (
        "the same batches with any prefetch and ranks",
        ["tests/data/test_module.py", "tests/data/test_prefetching.py", UNCHANGED],
    ),
    5: ("damaged shards are refused", ["tests/data/test_preparation_faults.py", "tests/data/test_opening.py", CHANGED]),
    6: ("flipped bytes are found by probe-lab verify", ["tests/test_verify.py"]),
    7: ("NaN or Inf in one rank's loss or gradient", faults("a_step_that_is_not_finite_ends_all_ranks")),
    8: ("signals at moments from start-up on", [*at_random("signals"), *SIGNALS]),
    9: ("a probe that fails", [*faults("a_probe_that_fails_is_recorded_and_costs_no_step"), UNCHANGED]),
    10: ("one checkpoint at any batch size and processes", ["tests/eval/test_batches_and_ranks.py"]),
    11: ("wandb missing, refused, stalled, failing", ["tests/test_dashboard.py"]),
    12: ("a full disk", [*faults("a_save_that_fails_ends_the_run_with_its_reason"), *FULL]),
    13: ("mutated configs and command lines", ["tests/test_hostile.py"]),
    14: ("a rank or an agent is killed", LOST),
    15: ("a committed loss file", ["tests/test_fit.py"]),
    16: ("many tiny steps, a probe every 500", ["tests/torture/test_long.py"]),
    17: ("preparation killed, two at once", [PREPARED]),
    18: (
        "chains of three stops and more, on 1, 2 and 4 processes",
        [*CHAINS, RESUMPTION, "tests/test_foreign_files.py"],
    ),
}
STEADY = (2, 3, 4, 5, 6, 7, 9, 10, 12, 13, 15)  # which no timing can make fail; `make slow` runs these in full
