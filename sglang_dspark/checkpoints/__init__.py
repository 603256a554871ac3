"""The layouts a MiniMax-M3 DSpark draft arrives in, read strictly.

All hold the same network and differ in names and config keys. `config` reads either layout's `config.json` into one
`DraftConfig`, `tensors` maps either layout's tensor names onto one set of names with known shapes, `files` reads what
lies in a folder. Nothing here imports SGLang.
"""

from sglang_dspark.checkpoints.config import DraftConfig, Layout, TargetFacts, parse_draft_config
from sglang_dspark.checkpoints.errors import CheckpointError
from sglang_dspark.checkpoints.files import read_config, read_tensor_shapes
from sglang_dspark.checkpoints.tensors import Accounting, canonical_name, expected_shapes

__all__ = [
    "Accounting",
    "CheckpointError",
    "DraftConfig",
    "Layout",
    "TargetFacts",
    "canonical_name",
    "expected_shapes",
    "parse_draft_config",
    "read_config",
    "read_tensor_shapes",
]
