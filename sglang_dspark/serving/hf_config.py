"""The Hugging Face config class of `model_type` "minimax_m3".

Text-only MiniMax-M3 checkpoints and AutoModel's drafts carry this model type, which transformers does not know. The
class keeps every key as it is; a draft in AutoModel's layout becomes the released config of the same network, which is
the one SGLang's own code reads.
"""

from __future__ import annotations

from typing import Any

from transformers import AutoConfig, PretrainedConfig

from sglang_dspark.checkpoints import Layout
from sglang_dspark.checkpoints.translate import SOURCE_LAYOUT_KEY, released_config


class MiniMaxM3Config(PretrainedConfig):
    """A MiniMax-M3 text model, or a DSpark draft of one."""

    model_type = "minimax_m3"

    def __init__(self, **keys: Any) -> None:
        """Keep `keys` as attributes, an AutoModel draft's translated to the released layout."""
        if keys.get("architectures") == [Layout.AUTOMODEL.value]:
            keys = released_config(keys)
        super().__init__(**keys)


def source_layout(config: PretrainedConfig) -> Layout:
    """The layout a draft's files are in, whatever its config was translated to."""
    return Layout(getattr(config, SOURCE_LAYOUT_KEY, Layout.RELEASED.value))


def register() -> None:
    """Make `AutoConfig` know the class; a later transformers that knows the type itself is overridden."""
    AutoConfig.register(MiniMaxM3Config.model_type, MiniMaxM3Config, exist_ok=True)
