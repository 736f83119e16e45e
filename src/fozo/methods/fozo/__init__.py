"""FOZO, the paper's method (Wang and Wang, CVPR 2026), and the journal that replays it."""

from fozo.methods.fozo.journal import replay_prompts
from fozo.methods.fozo.method import FOZO, FOZOConfig

__all__ = ["FOZO", "FOZOConfig", "replay_prompts"]
