"""What a run leaves in its folder: metrics, history, checkpoints' place, trackers, profile."""
