"""This measure is part of eval.probe; this command names the line to use."""

from eval.engine.command import moved
from lab.command import start

main = moved("eval.methods: is part of eval.probe; use python -m eval.probe MODEL --distance=rope,dca,string")

if __name__ == "__main__":
    start(main)
