"""A small MiniMax-M3 and its DSpark draft, built on the spot: everything here runs without a download."""

from sglang_dspark.demo.pair import DemoPair, build, ensure
from sglang_dspark.demo.prompts import prompts
from sglang_dspark.demo.spec import DemoSpec

__all__ = ["DemoPair", "DemoSpec", "build", "ensure", "prompts"]
