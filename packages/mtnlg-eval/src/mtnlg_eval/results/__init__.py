"""What a score is (result.py), how it differs from the paper's (paper_setting.py), where it is kept (folder.py)."""
