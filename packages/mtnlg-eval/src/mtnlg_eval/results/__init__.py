"""Scores: their record (result.py), differences from the paper's setting (paper_setting.py), storage (folder.py)."""
