"""The training loop and its parts: samples, schedule, guard, checkpoints, watchdog."""
