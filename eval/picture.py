"""Drawing runs belongs to eval.report; this command names the line to use."""

from eval.engine.command import moved

if __name__ == "__main__":
    moved("eval.picture: is part of eval.report; use python -m eval.report RUN [RUN ...] -o picture.png")
