"""Stands for lab.probe_saved: finds something, prints a line and dies, or hangs, as the number of tokens says."""

import json
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    folder, tokens = Path(sys.argv[1]), int(sys.argv[2])
    print("first\nlast", flush=True)
    if tokens == 2000:
        sys.exit(3)
    time.sleep(60 if tokens == 3000 else 0)
    (folder / f"probing/tokens-{tokens:015d}.json").write_text(json.dumps({"lines": [{"at": tokens}], "cases": []}))
