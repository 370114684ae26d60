"""The MT-NLG 530B decoder at any size, its generation, and a checkpoint that any layout can open."""
