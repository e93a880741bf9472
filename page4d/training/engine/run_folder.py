"""Files of a run."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run."""

    path: Path

    @property
    def config(self) -> Path:
        """Configuration."""
        return self.path / "config.json"

    @property
    def checkpoint(self) -> Path:
        """Latest checkpoint."""
        return self.path / "checkpoint.pt"

    @property
    def stable(self) -> Path:
        """Checkpoint before the learning rate decay, from which a run with a longer budget continues."""
        return self.path / "stable.pt"

    @property
    def metrics(self) -> Path:
        """Losses and metrics, one JSON object per line."""
        return self.path / "metrics.jsonl"

    @property
    def tensorboard(self) -> Path:
        """TensorBoard files."""
        return self.path / "tensorboard"

    @property
    def weights(self) -> Path:
        """EMA weights of a supervised run."""
        return self.path / "weights.safetensors"

    @property
    def encoder(self) -> Path:
        """Encoder of a pretraining run."""
        return self.path / "encoder.safetensors"

    @property
    def curve(self) -> Path:
        """Chart of losses and metrics."""
        return self.path / "curve.png"
