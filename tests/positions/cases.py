"""A row a method, with parameters that it accepts. What holds for every method is tested for those listed here."""

FREQUENCIES = {
    "rope": {},
    "pi": {"factor": 4.0},
    "ntk": {"factor": 4.0},
    "dynamic_ntk": {"factor": 4.0, "train_len": 2048},
    "ntk_by_parts": {"factor": 4.0, "train_len": 2048},
    "yarn": {"factor": 8.0, "train_len": 8192},
    "llama3": {"factor": 8.0, "train_len": 8192},
    "abf": {},
    "entropy_abf": {"train_len": 4096},
}
DISTANCES = {
    "plain": {},
    "string": {"shift": 20, "window": 4},
    "dca": {"train_len": 10},
    "self_extend": {"group": 2, "window": 4},
    "rerope": {"window": 4},
    "leaky_rerope": {"window": 4, "leak": 2.0},
}
