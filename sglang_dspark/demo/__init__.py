"""A small MiniMax-M3 and its DSpark draft, trained or constructed: everything here runs without a download."""

from sglang_dspark.demo.code_prompts import code_prompts
from sglang_dspark.demo.pair import DemoPair, build, ensure
from sglang_dspark.demo.prompts import prompts
from sglang_dspark.demo.spec import DemoSpec

__all__ = ["DemoPair", "DemoSpec", "build", "code_prompts", "ensure", "prompts"]
