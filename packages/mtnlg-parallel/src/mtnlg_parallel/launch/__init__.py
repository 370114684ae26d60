"""Starting ranks here or under Slurm, and watching them."""
