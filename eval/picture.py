"""Drawing runs belongs to eval.report; this command names the line to use."""

from eval.engine.command import moved
from lab.command import start

main = moved("eval.picture: is part of eval.report; use python -m eval.report RUN [RUN ...] -o picture.png")

if __name__ == "__main__":
    start(main)
