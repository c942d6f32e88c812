"""The lab's measurements in other people's training loops: lab.watch, and callbacks over it."""
