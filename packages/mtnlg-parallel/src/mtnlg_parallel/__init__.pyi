from .engine.contract import Engine, StepSettings
from .identity import IdentityError
from .launch.run import train
from .layout import Layout, parse_layout, stages
from .planner.cluster import Cluster, load_cluster
from .planner.programs import Software, load_software
from .planner.report import plan
from .planner.run import Run
from .planner.search import search
from .planner.step import Prediction, predict
from .recipe import Recipe, RunOptions
from .recipe_file import load_recipe
from .training.guard import TooManySkips
from .training.samples import Data
from .training.schedule import BatchSize, LearningRate, Ramp

__all__ = [
    "BatchSize",
    "Cluster",
    "Data",
    "Engine",
    "IdentityError",
    "Layout",
    "LearningRate",
    "Prediction",
    "Ramp",
    "Recipe",
    "Run",
    "RunOptions",
    "Software",
    "StepSettings",
    "TooManySkips",
    "load_cluster",
    "load_recipe",
    "load_software",
    "parse_layout",
    "plan",
    "predict",
    "search",
    "stages",
    "train",
]
