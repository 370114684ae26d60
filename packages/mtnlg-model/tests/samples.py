"""What test modules share."""

from mtnlg_model.checkpoint.manifest import Layout, Progress

PROGRESS = Progress(step=1, samples=2, tokens=3, loss=1.5, stream="f00d", layout=Layout(tp=2))
