"""Which tensors of which public networks make which of our networks: recipes as data."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from torch import Tensor

from page4d.errors import UsageError, WeightsError
from page4d.models.config import BiasRows, MaskConfig, MaskHeadKind, MaskRule, NetworkConfig, Streams
from page4d.models.schedule import FRAME_GLOBAL, Schedule
from page4d.weights.accounting import Exemption, Stage
from page4d.weights.families import TITLES, Family, Recognised, Specs, mask_head_kind
from page4d.weights.initialization import FreshTensors
from page4d.weights.keymap import PAGE4D, PI3, VGGT, KeyMap
from page4d.weights.published import VGGTSettings
from page4d.weights.view_time import ViewTimeOptions, view_time_network


class Recipe(StrEnum):
    """A way to fill a network."""

    VGGT = "vggt"
    PAGE4D = "page4d"
    PI3 = "pi3"
    THREE_STAGE = "three-stage"


class Target(StrEnum):
    """The network that is filled."""

    OWN = "own"
    """The family's own, with attention within one image and across all."""
    PAGE4D_MV = "page4d-mv"
    """The view x time network, with attention along the time of each view and across the views of each instant."""


FAMILIES: dict[Recipe, tuple[Family, ...]] = {
    Recipe.VGGT: (Family.VGGT,),
    Recipe.PAGE4D: (Family.PAGE4D,),
    Recipe.PI3: (Family.PI3,),
    Recipe.THREE_STAGE: (Family.PI3, Family.PAGE4D),
}
"""What a recipe needs, in the order in which it is read."""

_KEYS: dict[Family, KeyMap] = {Family.VGGT: VGGT, Family.PAGE4D: PAGE4D, Family.PI3: PI3}

_UNUSED = (
    Exemption(rule="track head: not needed to reconstruct", pattern=r"track_head\..*"),
    Exemption(rule="mask token: used in pretraining only", pattern=r"aggregator\.patch_embed\.mask_token"),
    Exemption(rule="constants of normalisation: built in", pattern=r"image_(?:mean|std)"),
)
_MASK_REST = Exemption(rule="mask head: rests (--mask off)", pattern=r"aggregator\.spatial_mask_head\..*")
_MASK_SCALARS = Exemption(
    rule="aggregator.dynamic.head",
    pattern=r"aggregator\.spatial_mask_head\.(alpha_logit|tau_logit)",
    target=r"aggregator.dynamic.head.\1",
)
_PI3_HEADS = Exemption(
    rule="Pi3's heads: those of PAGE-4D are used",
    pattern=r"(?:(?:point|conf|camera)_(?:decoder|head))\..*",
)
_ENCODER_OF_PI3 = Exemption(rule="encoder: Pi3's is used", pattern=r"aggregator\.patch_embed\..*")
_REGISTERS_OF_PI3 = Exemption(rule="registers: Pi3's are used", pattern=r"aggregator\.register_token")


@dataclass(frozen=True, kw_only=True)
class Blueprint:
    """A network to be filled and how: by stages, by copies of what they filled, and anew."""

    config: NetworkConfig
    stages: tuple[Stage, ...]
    fresh: FreshTensors = field(default_factory=FreshTensors)
    last_of_pi3: int | None = None
    """The last layer that Pi3 fills, where it does."""
    notices: tuple[str, ...] = ()


def draw_blueprint(
    recipe: Recipe,
    target: Target,
    found: Mapping[Family, Recognised],
    specs: Mapping[Family, Specs],
    mask: bool | None = None,
    options: ViewTimeOptions | None = None,
) -> Blueprint:
    """Return the network of a recipe and where its tensors come from.

    Raises:
        UsageError: if options contradict the recipe, or PAGE-4D is asked for without saying whether its mask is on.
        WeightsError: if the sources do not fit each other.
    """
    if mask is not None and Family.PAGE4D not in FAMILIES[recipe]:
        raise UsageError(f"--mask is of PAGE-4D; recipe {recipe} has none", "leave it out")
    if recipe is Recipe.THREE_STAGE and target is not Target.PAGE4D_MV:
        raise UsageError("recipe three-stage makes the view x time network only", "pass --to page4d-mv")
    if options is not None and target is not Target.PAGE4D_MV:
        raise UsageError(
            "options of the view x time network are given, but another network is asked for", "pass --to page4d-mv"
        )
    options = options or ViewTimeOptions()
    if recipe is Recipe.THREE_STAGE:
        return _three_stage(found, mask_head_kind(specs[Family.PAGE4D]), options, mask=mask is not False)
    (family,) = FAMILIES[recipe]
    if family is Family.PAGE4D:
        return _page4d(found[family], target, mask_head_kind(specs[family]), mask, options)
    own = found[family].network
    if target is Target.OWN:
        return Blueprint(config=own, stages=(_stage(family, FRAME_GLOBAL),))
    config = view_time_network(own, MaskHeadKind.CONV, options)
    return Blueprint(
        config=config,
        stages=(_stage(family, config.schedule),),
        fresh=FreshTensors(values=options.scalars, mask_head=True),
        last_of_pi3=own.depth - 1 if family is Family.PI3 else None,
    )


def _page4d(
    found: Recognised, target: Target, kind: MaskHeadKind, mask: bool | None, options: ViewTimeOptions
) -> Blueprint:
    if kind is MaskHeadKind.CKPT150 and target is Target.OWN:
        raise WeightsError(
            "this PAGE-4D checkpoint has the mask of its older variant (checkpoint_150), not that of the release",
            "pass --to page4d-mv, which has that mask head",
        )
    if mask is None:
        raise UsageError(
            "a PAGE-4D checkpoint does not say whether it runs with its mask",
            "pass --mask on for checkpoint_mask.pt, --mask off for checkpoint_nomask.pt",
        )
    exemptions = (_MASK_SCALARS if mask else _MASK_REST,)
    if target is Target.OWN:
        config = replace(found.network, mask=_release_mask(found)) if mask else found.network
        return Blueprint(config=config, stages=(_stage(Family.PAGE4D, FRAME_GLOBAL, exemptions),))
    start = _release_mask(found).layers[0] if mask and kind is MaskHeadKind.RELEASE else None
    config = view_time_network(found.network, kind if mask else MaskHeadKind.CONV, options, start)
    return Blueprint(
        config=config,
        stages=(_stage(Family.PAGE4D, config.schedule, exemptions),),
        fresh=FreshTensors(values=options.scalars, mask_head=not mask),
    )


def _three_stage(
    found: Mapping[Family, Recognised], kind: MaskHeadKind, options: ViewTimeOptions, *, mask: bool
) -> Blueprint:
    lower, upper = found[Family.PI3].network, found[Family.PAGE4D].network
    _check_joint(lower, upper)
    replaced = "|".join(str(layer) for layer in range(lower.depth))
    from_pi3 = Exemption(
        rule=f"layers 0 to {lower.depth - 1}: Pi3's are used",
        pattern=rf"aggregator\.(?:frame|global)_blocks\.(?:{replaced})\..*",
    )
    registers = Exemption(
        rule="registers: the first of Pi3's, for both slots",
        pattern="register_token",
        target="aggregator.special.register_token",
        adapt=_Registers(count=upper.num_registers, slots=upper.token_slots),
    )
    exemptions = (_ENCODER_OF_PI3, _REGISTERS_OF_PI3, from_pi3, _MASK_SCALARS if mask else _MASK_REST)
    joined = replace(
        upper,
        encoder=lower.encoder,
        norm_eps=tuple((lower if layer < lower.depth else upper).norm_eps_of(layer) for layer in range(upper.depth)),
    )
    config = view_time_network(joined, kind if mask else MaskHeadKind.CONV, options)
    if config.sparse is not None:  # its blocks are Pi3's, in layers of PAGE-4D
        config = replace(config, sparse=replace(config.sparse, norm_eps=lower.norm_eps_of(lower.depth - 1)))
    stages = (
        _stage(Family.PI3, config.schedule, (_PI3_HEADS, registers)),
        _stage(Family.PAGE4D, config.schedule, exemptions),
    )
    # PAGE-4D's mask head never saw what Pi3's layers make.
    values = {"alpha": 0.0, **options.scalars} if mask else options.scalars
    return Blueprint(
        config=config,
        stages=stages,
        fresh=FreshTensors(values=values, mask_head=not mask),
        last_of_pi3=lower.depth - 1,
        notices=("three-stage joins layers that were never trained together: fine-tune it before you trust it",),
    )


def _check_joint(lower: NetworkConfig, upper: NetworkConfig) -> None:
    """Refuse to put layers of PAGE-4D onto layers of a Pi3 that differs in size."""
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


@dataclass(frozen=True)
class _Registers:
    """Give every slot the first registers of a source that has one slot."""

    count: int
    slots: int

    def __call__(self, tokens: Tensor) -> Tensor:
        return tokens[:, :1, : self.count].expand(-1, self.slots, -1, -1)


def _stage(family: Family, schedule: Schedule, exemptions: tuple[Exemption, ...] = ()) -> Stage:
    within, across = schedule
    return Stage(
        origin=TITLES[family],
        exemptions=(*exemptions, *_UNUSED),
        keys=_KEYS[family],
        steps={"frame": within.value, "global": across.value},
    )


def _release_mask(found: Recognised) -> MaskConfig:
    """Return the mask as the public PAGE-4D release uses it."""
    assert isinstance(found.settings, VGGTSettings)
    settings = found.settings.mask
    if settings.mask_after_frame_block[0] != settings.layers_masked[0] - 1:
        raise UsageError(
            f"--config: the mask is taken after frame block {settings.mask_after_frame_block[0]} "
            f"and acts from layer {settings.layers_masked[0]}",
            "page4d takes it one layer before it acts",
        )
    return MaskConfig(
        layers=settings.layers_masked,
        head=MaskHeadKind.RELEASE,
        rule=MaskRule.PAGE4D,
        streams=Streams.SINGLE,
        bias_rows=BiasRows.SPECIAL,
    )
