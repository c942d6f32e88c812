"""Train the runs of a sweep file on this machine."""
