"""The files that a run writes to its folder: metrics, history, location of checkpoints, trackers, profile."""
