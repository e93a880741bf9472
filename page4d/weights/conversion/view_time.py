"""Blueprints of conversions: the network that a set of sources fills, and the origin of each of its parts.

A view x time network may have parts that its checkpoint lacks. Their initial values are neutral scalars, a mask head,
and memory tokens from a seed.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

import torch
from torch import Tensor

from page4d.choices import FullAttention, Target, TimeEncoding
from page4d.errors import UsageError, WeightsError
from page4d.networks.config import TIME_VIEW, NetworkConfig
from page4d.networks.config_parts import (
    EpipolarConfig,
    MaskConfig,
    MaskHeadKind,
    PatchPositions,
    SparseConfig,
    Streams,
)
from page4d.networks.encoders.build import EncoderConfig
from page4d.networks.heads.motion import DynamicMask
from page4d.networks.layers.block import INIT_STD
from page4d.options import in_options
from page4d.weights.conversion.accounting import Copy, Rule, SourceStage
from page4d.weights.families.family import Family
from page4d.weights.families.table import FAMILIES, PublishedNetwork, network_stage


class TokenStreams(StrEnum):
    """Streams of tokens of the view x time network from the first masked layer on."""

    SINGLE = "single"
    DUAL = "dual"
    """One for cameras, one for geometry."""

    OWN = "own"
    """Dual, each with its own copies of the masked layers' blocks."""


@dataclass(frozen=True, kw_only=True)
class AddedParts:
    """Parts of the view x time network that no checkpoint determines; their gates start at 0.

    `streams` are dual by default, single for Pi3. `epipolar` favours attention along epipolar lines in masked layers.
    """

    streams: TokenStreams | None = None
    sparse: SparseConfig | None = None
    time_encoding: TimeEncoding = TimeEncoding.NONE
    epipolar: bool = False


NO_PARTS = AddedParts()


def view_time_network(
    published: NetworkConfig, head: MaskHeadKind, parts: AddedParts = NO_PARTS, first_masked: int | None = None
) -> NetworkConfig:
    """Return the view x time network with the sizes and heads of a published network.

    All images of a capture of a single view attend to each other, as in the published network: weights of attention
    within one image are not trained to relate instants. The mask acts in layers 8 to 12 of 24, or from `first_masked`
    on in as many layers.

    Raises:
        UsageError: if the parts contradict each other or the network, or its weights do not fit these steps.
    """
    reason = _why_not(published)
    if reason is not None:
        raise UsageError(
            f"this network cannot become the view x time network: {reason}", "leave ⟨target=page4d-mv⟩ out"
        )
    mask = _mask(published, head, parts.streams, first_masked)
    return replace(
        published,
        schedule=TIME_VIEW,
        full_attention=FullAttention.ONE_VIEW,
        time_encoding=parts.time_encoding,
        mask=mask,
        sparse=parts.sparse,
        epipolar=EpipolarConfig(layers=mask.layers) if parts.epipolar else None,
    )


def copied_tensors(names: Iterable[str], config: NetworkConfig, last_of_pi3: int | None) -> dict[str, Copy]:
    """Return the tensors that are initialized as copies of trunk blocks, by name.

    Stream blocks copy the blocks of their layer. Sparse blocks copy the block across views of the last layer that Pi3
    fills, if any, else of their layer.
    """
    across = next(step for step in config.schedule if step.across_views)
    found = {}
    for name in names:
        if match := re.fullmatch(r"aggregator\.stream_blocks\.\w+\.(\w+)\.(\d+)\.(.*)", name):
            assert config.mask is not None
            layer = config.mask.layers[int(match[2])]
            found[name] = Copy(
                rule="stream blocks: copies of trunk blocks",
                target=f"aggregator.blocks.{match[1]}.{layer}.{match[3]}",
            )
        elif match := re.fullmatch(r"aggregator\.sparse\.layers\.(\d+)\.block\.(.*)", name):
            layer = int(match[1]) if last_of_pi3 is None else last_of_pi3
            found[name] = Copy(
                rule=f"sparse block: copy of layer {layer} across views",
                target=f"aggregator.blocks.{across}.{layer}.{match[2]}",
            )
    return found


def _why_not(published: NetworkConfig) -> str | None:
    """Return why the weights of a network do not fit steps along time and across the views of an instant, if so."""
    if published.depth == 0:
        return "it attends within single images only, so it has no weights that relate instants or views"
    if published.register_layers:
        return "in some of its layers, special tokens alone attend across images; the mask needs steps of all tokens"
    grid = published.within_positions is published.across_positions is PatchPositions.GRID
    if published.starts_across or not grid:
        return "its patches have no positions of their own across images; the mask needs positions on the grid"
    return None


def _mask(
    published: NetworkConfig, head: MaskHeadKind, streams: TokenStreams | None, start: int | None
) -> MaskConfig:
    single_stream = published.frame_head is not None
    asked = streams or (TokenStreams.SINGLE if single_stream else TokenStreams.DUAL)
    if single_stream and asked is not TokenStreams.SINGLE:
        raise UsageError(
            f"⟨streams={asked}⟩: the heads of Pi3 and Pi3X read a single stream",
            "leave it out, or give PAGE-4D as a second source",
        )
    first = published.depth // 3 if start is None else start
    count = max(1, round(5 * published.depth / 24))
    layers = tuple(range(first, min(first + count, published.depth)))
    kind = Streams.SINGLE if asked is TokenStreams.SINGLE else Streams.DUAL
    return MaskConfig(layers=layers, head=head, streams=kind, own_blocks=asked is TokenStreams.OWN)


_SEED = 0
_HEAD, _ALPHA = "aggregator.dynamic.head.", "aggregator.dynamic.alpha"
_MEMORY = r"aggregator\.sparse\.layers\.(\d+)\.memory"


_SCALARS = (
    ("alpha, beta", r"aggregator\.dynamic\.(alpha|beta)", 1.0),
    ("lambda", r"aggregator\.mask_bias\.lambda_(pose|geo)(_t)?", 0.0),
    ("lambda_kpt", r"aggregator\.sparse\.lambda_kpt", 0.0),
    ("sparse_gate", r"aggregator\.sparse\.layers\.\d+\.gate", 0.0),
    ("time_gate", r"aggregator\.time\.gates", 0.0),
)
"""Learned scalars, or one per layer, with their initial values, with which the network computes what its checkpoint
computes: name in reports, pattern and value."""


@dataclass(frozen=True, kw_only=True)
class NewTensors:
    """Initialization of tensors without a source."""

    alpha: float = 1.0
    """Weight of the predicted mask in the fused one."""
    mask_head: bool = False
    """Whether the mask head is initialized rather than filled by a checkpoint."""

    def rule(self, name: str) -> str | None:
        """Return the initialization rule of a tensor, or None if it needs a source."""
        start = self._start(name)
        if start is not None:
            return f"{start[0]}: starts at {start[1]:g}"
        if name.startswith(_HEAD) and self.mask_head:
            return "dynamic mask head: untrained, last layer 0"
        return "memory: random" if re.fullmatch(_MEMORY, name) is not None else None

    def _start(self, name: str) -> tuple[str, float] | None:
        """Return the name in reports and the initial value of a scalar; None for another tensor."""
        if name == _ALPHA and self.alpha != 1.0:
            return "alpha", self.alpha
        return next(((title, value) for title, pattern, value in _SCALARS if re.fullmatch(pattern, name)), None)

    def tensors(self, config: NetworkConfig, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
        """Return initial tensors of these names and shapes, the same in every call."""
        head = _mask_head(config) if any(name.startswith(_HEAD) for name in shapes) else {}
        return {name: head[name] if name in head else self._tensor(name, shape) for name, shape in shapes.items()}

    def _tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        start = self._start(name)
        if start is not None:
            return torch.full(shape, start[1])
        memory = re.fullmatch(_MEMORY, name)
        assert memory is not None, name
        return INIT_STD * torch.randn(shape, generator=torch.Generator().manual_seed(_SEED + int(memory[1])))


def _mask_head(config: NetworkConfig) -> dict[str, Tensor]:
    assert config.mask is not None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        head = DynamicMask(config.mask, config.encoder.embed_dim).head
    return {_HEAD + name: value.detach() for name, value in head.state_dict().items()}


THREE_STAGE = (Family.PI3, Family.PAGE4D)
"""Sources that are combined: encoder and first layers of Pi3, last layers and heads of PAGE-4D."""

_MASK_UNUSED = Rule(r"aggregator\.spatial_mask_head\..*", None, in_options("mask head: not used (⟨mask=off⟩)"))
_MASK_SCALARS = Rule(r"aggregator\.spatial_mask_head\.(alpha_logit|tau_logit)", r"aggregator.dynamic.head.\1")
_PI3_HEADS = Rule(r"(?:(?:point|conf|camera)_(?:decoder|head))\..*", None, "Pi3 heads: PAGE-4D heads are used")
_PAGE4D_ENCODER = Rule(r"aggregator\.patch_embed\..*", None, "encoder: Pi3 encoder is used")
_PAGE4D_REGISTERS = Rule(r"aggregator\.register_token", None, "registers: Pi3 registers are used")


@dataclass(frozen=True, kw_only=True)
class Blueprint:
    """A network or encoder to be filled, and the origin of its tensors: sources, copies, new tensors."""

    config: NetworkConfig | EncoderConfig
    stages: tuple[SourceStage, ...]
    new: NewTensors = field(default_factory=NewTensors)
    last_of_pi3: int | None = None
    """The last layer that Pi3 fills, if any."""
    notices: tuple[str, ...] = ()


def encoder_blueprint(family: Family, config: EncoderConfig) -> Blueprint:
    """Return the blueprint of a single encoder."""
    data = FAMILIES[family]
    assert not callable(data.keys)
    stage = SourceStage(origin=data.title, keys=data.keys)
    return Blueprint(config=config, stages=(stage,), notices=data.notices)


def network_blueprint(
    target: Target, found: Mapping[Family, PublishedNetwork], mask: bool | None = None, parts: AddedParts = NO_PARTS
) -> Blueprint:
    """Return the blueprint of the network that published ones fill: one of them, or those of `THREE_STAGE`.

    Raises:
        UsageError: if parts contradict the sources, or PAGE-4D is converted without specifying its mask.
        WeightsError: if the sources do not fit each other.
    """
    if mask is not None and Family.PAGE4D not in found:
        raise UsageError("⟨mask⟩ applies to PAGE-4D", "leave it out")
    if len(found) > 1 and target is not Target.PAGE4D_MV:
        raise UsageError("Pi3 and PAGE-4D make the view x time network only", "pass ⟨target=page4d-mv⟩")
    if parts != NO_PARTS and target is not Target.PAGE4D_MV:
        raise UsageError(
            "parts of the view x time network are given without ⟨target=page4d-mv⟩", "pass ⟨target=page4d-mv⟩"
        )
    if len(found) > 1:
        return _three_stage(found[Family.PI3], found[Family.PAGE4D], parts, mask=mask is not False)
    (published,) = found.values()
    if published.family is Family.PAGE4D:
        return _page4d(published, target, mask, parts)
    return _single(published, target, parts)


def _single(found: PublishedNetwork, target: Target, parts: AddedParts) -> Blueprint:
    published, notices = found.config, (*found.notices, *FAMILIES[found.family].notices)
    if target is Target.OWN:
        return Blueprint(config=published, stages=(network_stage(found, published.schedule),), notices=notices)
    config = view_time_network(published, MaskHeadKind.CONV, parts)
    return Blueprint(
        config=config,
        stages=(network_stage(found, config.schedule),),
        new=NewTensors(mask_head=True),
        last_of_pi3=published.depth - 1 if found.family in (Family.PI3, Family.PI3X) else None,
        notices=notices,
    )


def _page4d(found: PublishedNetwork, target: Target, mask: bool | None, parts: AddedParts) -> Blueprint:
    kind, released = found.mask_head, found.mask
    assert kind is not None
    assert released is not None
    if kind is MaskHeadKind.CKPT150 and target is Target.OWN:
        raise WeightsError(
            "this PAGE-4D checkpoint has the mask head of an older variant (checkpoint_150), not of the release",
            "pass ⟨target=page4d-mv⟩, which supports that mask head",
        )
    if mask is None:
        raise UsageError(
            "a PAGE-4D checkpoint does not record whether it runs with its mask",
            "pass ⟨mask=on⟩ for checkpoint_mask.pt, ⟨mask=off⟩ for checkpoint_nomask.pt",
        )
    head = _MASK_SCALARS if mask else _MASK_UNUSED
    if target is Target.OWN:
        config = replace(found.config, mask=released if mask else None)
        return Blueprint(config=config, stages=(network_stage(found, config.schedule, head),))
    start = released.layers[0] if mask and kind is MaskHeadKind.RELEASE else None
    config = view_time_network(found.config, kind if mask else MaskHeadKind.CONV, parts, start)
    return Blueprint(
        config=config, stages=(network_stage(found, config.schedule, head),), new=NewTensors(mask_head=not mask)
    )


def _three_stage(pi3: PublishedNetwork, page4d: PublishedNetwork, parts: AddedParts, *, mask: bool) -> Blueprint:
    lower, upper, kind = pi3.config, page4d.config, page4d.mask_head
    assert kind is not None
    _check_joint(lower, upper)
    replaced = "|".join(str(layer) for layer in range(lower.depth))
    page4d_layers = Rule(
        rf"aggregator\.(?:frame|global)_blocks\.(?:{replaced})\..*",
        None,
        f"layers 0 to {lower.depth - 1}: Pi3 layers are used",
    )
    registers = Rule(
        "register_token",
        "aggregator.special.register_token",
        "registers: first Pi3 registers, in each slot",
        adapt=lambda tokens: tokens[:, :1, : upper.num_registers].expand(-1, upper.token_slots, -1, -1),
    )
    unused = (_PAGE4D_ENCODER, _PAGE4D_REGISTERS, page4d_layers, _MASK_SCALARS if mask else _MASK_UNUSED)
    joined = replace(
        upper,
        encoder=lower.encoder,
        norm_eps=tuple((lower if layer < lower.depth else upper).norm_eps_of(layer) for layer in range(upper.depth)),
    )
    config = view_time_network(joined, kind if mask else MaskHeadKind.CONV, parts)
    if config.sparse is not None:  # its blocks are copies of Pi3 blocks, in layers of PAGE-4D
        config = replace(config, sparse=replace(config.sparse, norm_eps=lower.norm_eps_of(lower.depth - 1)))
    stages = (
        network_stage(pi3, config.schedule, _PI3_HEADS, registers),
        network_stage(page4d, config.schedule, *unused),
    )
    # PAGE-4D's mask head was not trained on the features of Pi3's layers.
    new = NewTensors(alpha=0.0) if mask else NewTensors(mask_head=True)
    return Blueprint(
        config=config,
        stages=stages,
        new=new,
        last_of_pi3=lower.depth - 1,
        notices=("three-stage joins layers that were not trained together: fine-tune the network before use",),
    )


def _check_joint(lower: NetworkConfig, upper: NetworkConfig) -> None:
    """Refuse to stack layers of PAGE-4D on those of a Pi3 of another size."""
    for name in ("encoder", "num_heads", "mlp_ratio", "qk_norm_eps", "rope_base"):
        ours, theirs = getattr(lower, name), getattr(upper, name)
        if ours != theirs:
            raise WeightsError(f"Pi3 has {name} {ours} where PAGE-4D has {theirs}", "use checkpoints of one size")
    if lower.num_registers != upper.num_registers + 1 or lower.depth >= upper.depth:
        raise WeightsError(
            f"Pi3 has {lower.num_registers} registers and {lower.depth} layers, "
            f"PAGE-4D {upper.num_registers} and {upper.depth}",
            "three-stage needs one register more and fewer layers in Pi3",
        )
