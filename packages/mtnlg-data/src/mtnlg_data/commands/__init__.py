"""Commands of stages: settings as command-line options, and what all stage commands share."""
