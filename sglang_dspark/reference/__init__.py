"""The draft in plain PyTorch: training forward, loss, sampling and lossless generation. The oracle for serving.

Imports torch, and transformers only where a target is loaded with it; never SGLang. The interface of the model is
AutoModel's, so that a draft trained by either continues in the other.
"""

from sglang_dspark.reference.checkpoint import from_checkpoint, save_checkpoint
from sglang_dspark.reference.config import ReferenceConfig
from sglang_dspark.reference.generate import DraftSession, Generation, Round, generate
from sglang_dspark.reference.layers import (
    MiniMaxM3DSparkAttention,
    MiniMaxM3DSparkDecoderLayer,
    MiniMaxM3DSparkMLP,
)
from sglang_dspark.reference.loss import DSparkLoss, LossWeights, Ratio, compute_dspark_loss
from sglang_dspark.reference.minimax_m3_target import load_minimax_m3
from sglang_dspark.reference.model import MiniMaxM3DSparkModel
from sglang_dspark.reference.output import DSparkForwardOutput
from sglang_dspark.reference.target import HuggingFaceTarget, Target, TargetSession, TargetStep

__all__ = [
    "DSparkForwardOutput",
    "DSparkLoss",
    "DraftSession",
    "Generation",
    "HuggingFaceTarget",
    "LossWeights",
    "MiniMaxM3DSparkAttention",
    "MiniMaxM3DSparkDecoderLayer",
    "MiniMaxM3DSparkMLP",
    "MiniMaxM3DSparkModel",
    "Ratio",
    "ReferenceConfig",
    "Round",
    "Target",
    "TargetSession",
    "TargetStep",
    "compute_dspark_loss",
    "from_checkpoint",
    "generate",
    "load_minimax_m3",
    "save_checkpoint",
]
