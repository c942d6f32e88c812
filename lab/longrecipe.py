"""python -m lab.longrecipe: a recipe of several runs; see lab.recipes.longrecipe."""

import sys

from lab.recipes.longrecipe import main

if __name__ == "__main__":
    if "--dry_run" in sys.argv[1:] and not {"--help", "-h"} & set(sys.argv[1:]):
        from lab.estimate.command import dry_run_of_recipe, print_dry_run  # torch loads here

        raise SystemExit(print_dry_run(sys.argv[1:], dry_run_of_recipe))
    raise SystemExit(main(sys.argv[1:]))
